// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A platform, a software unit, one domain, and its DMA API; devices whose bytes move while their
//! accesses are in flight.

use crate::BY;
pub use crate::bounce::placements::{ON_DEMAND, PLACEMENTS, adjoining, tight};
use crate::bounce::suite::{Base, DISK, NIC, Vtd};
use ioatlas_dma::{
    dma_api::*,
    domain::*,
    platform::{CopyMemory, FreshFrame, Platform},
    translator::Paged,
    units::*,
};
use ioatlas_viommu::{machine::*, oracle::Failing};
use std::sync::Arc;

pub type Tables<B> = Paged<Failing<B>, Vtd, Arc<Driver<Failing<B>>>>;
pub type Dev<B> = Client<Failing<B>, Tables<B>>;

pub struct Rig<B: Base> {
    pub machine: Machine<Failing<B>>,
    pub domain: Arc<Domain<Failing<B>, Tables<B>>>,
    pub dma: Arc<Dma<Failing<B>, Tables<B>>>,
    /// Of the tests' own buffers.
    frames: Vec<FreshFrame>,
}

impl<B: Base> Rig<B> {
    /// With so many frames; the NIC and the disk are attached.
    pub fn new(frames: usize, design: DomainConfig, config: DmaConfig) -> Self {
        let base = Arc::new(Failing::new(B::make(frames)));
        let unit = UnitConfig::new(Geometry::of::<Vtd>());
        let machine = Machine::new(base, &unit).expect("a machine");
        let domain = Arc::new(machine.domain::<Vtd>(design).expect("a domain"));
        for device in [NIC, DISK] {
            domain.attach(device).expect("attached");
        }
        let dma = Arc::new(Dma::new(domain.clone(), config));
        Rig {
            machine,
            domain,
            dma,
            frames: Vec::new(),
        }
    }
    pub fn p(&self) -> &Failing<B> {
        self.machine.platform()
    }
    pub fn frames_in_use(&self) -> usize {
        self.p().inner().frames_in_use()
    }
    pub fn client(&self, placement: Placement) -> Dev<B> {
        let config = ClientConfig::default().placement(placement);
        self.dma.client(config).expect("a pool")
    }
    /// So many contiguous pages of the test's own.
    pub fn memory(&mut self, pages: usize) -> PhysAddr {
        let run = adjoining(self.p(), pages);
        let first = run[0].page().addr();
        self.frames.extend(run);
        first
    }
    pub fn poke(&self, at: PhysAddr, bytes: &[u8]) {
        self.p().write(BY, bytes, at).expect("memory");
    }
    pub fn fill(&self, buffer: PhysRange, byte: u8) {
        self.poke(buffer.addr, &vec![byte; buffer.len.0 as usize]);
    }
    pub fn peek(&self, at: PhysAddr, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.p().read(BY, at, &mut bytes).expect("memory");
        bytes
    }

    /// Whether a transfer succeeded; what the unit lets through is memory.
    fn reached(result: Result<(), TransferError>) -> bool {
        match result {
            Ok(()) => true,
            Err(error) if matches!(error.reason, TransferErrorReason::Fault(_)) => false,
            Err(error) => panic!("{error}"),
        }
    }
    /// Every page of some bytes by itself: its first byte, and which of the bytes lie there. A
    /// device that attacks goes on behind a page that is refused, which a transfer does not.
    fn pages(at: Iova, len: u64) -> impl Iterator<Item = (Iova, std::ops::Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let here = Iova(at.0 + done);
            let part = (len - done).min(GRANULE - here.offset());
            done += part;
            (part > 0).then(|| (here, (done - part) as usize..done as usize))
        })
    }
    /// What the device reads; `None` is a fault.
    pub fn device_read(&self, source: SourceId, at: Iova, len: u64) -> Vec<Option<u8>> {
        let mut seen = vec![None; len as usize];
        for (at, part) in Self::pages(at, len) {
            let seen = &mut seen[part];
            let mut bytes = vec![0; seen.len()];
            if Self::reached(self.machine.dma_read(source, at, &mut bytes)) {
                seen.iter_mut()
                    .zip(bytes)
                    .for_each(|(to, byte)| *to = Some(byte));
            }
        }
        seen
    }
    /// Returns how many bytes it could write.
    pub fn device_write(&self, source: SourceId, at: Iova, bytes: &[u8]) -> usize {
        let mut written = 0;
        for (at, part) in Self::pages(at, bytes.len() as u64) {
            let bytes = &bytes[part];
            if Self::reached(self.machine.dma_write(source, at, bytes)) {
                written += bytes.len();
            }
        }
        written
    }

    /// Checks that the books add up and nothing is in use (P10); then ends everything, after which
    /// not one frame may be in use.
    pub fn end(self, context: &str) {
        let say = |e: String| -> String { panic!("{context}: P10: {e}") };
        for pool in self.dma.audit().map_err(say).expect("an audit") {
            for (bytes, slots) in &pool.classes {
                let left = (slots.taken, slots.lost);
                assert_eq!(left, (0, 0), "{context}: P10: slots of {bytes}");
            }
            assert_eq!(pool.chunks.taken, PageCount(0), "{context}: P10");
        }
        assert_eq!(self.dma.raw_mappings(), 0, "{context}: P10");
        self.domain.audit().map_err(say).expect("an audit");
        let Rig {
            machine,
            domain,
            dma,
            frames,
        } = self;
        let platform = machine.platform().clone();
        drop(dma); // ends the pools
        domain.flush().expect("a flush");
        let audit = domain.audit().map_err(say).expect("an audit");
        let left = (audit.stats.live, audit.usage.allocated);
        assert_eq!(
            left,
            (PageCount(0), PageCount(0)),
            "{context}: P10: {domain}"
        );
        let domain = Arc::into_inner(domain).expect("no other owner of the domain is left");
        domain.close().expect("closed");
        machine.unit().audit().map_err(say).expect("the unit");
        machine.shut_down().expect("off");
        frames
            .into_iter()
            .for_each(|frame| platform.frame_free(BY, frame));
        let left = platform.inner().frames_in_use();
        assert_eq!(left, 0, "{context}: P10: frames not given back");
    }
}
