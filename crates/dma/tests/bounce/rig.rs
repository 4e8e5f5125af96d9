// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A host, a domain, and a device that goes through the domain's table at every access.

use ioatlas_dma::{
    dma_api::*,
    domain::*,
    platform::{host::*, *},
    table::{TableConfig, fmt::VtdSecond48},
    translator::{Paged, Uncached},
    units::*,
};
use std::sync::Arc;

pub type Tables = Paged<Host, VtdSecond48, Uncached<Host>>;

pub struct Rig {
    pub p: Arc<Host>,
    pub domain: Arc<Domain<Host, Tables>>,
    pub dma: Arc<Dma<Host, Tables>>,
}

impl Rig {
    pub fn new(config: DmaConfig) -> Self {
        Self::with(config, 4096, DomainConfig::default())
    }
    pub fn with(config: DmaConfig, frames: usize, domain: DomainConfig) -> Self {
        let p = Arc::new(Host::new(HostConfig { frames, slots: 3 }));
        let table = Paged::new(&*p, Uncached::new(), TableConfig::default()).unwrap();
        let domain = Arc::new(Domain::new(p.clone(), table, domain).unwrap());
        let dma = Arc::new(Dma::new(domain.clone(), config));
        Rig { p, domain, dma }
    }
    pub fn client(&self, placement: Placement) -> Client<Host, Tables> {
        let config = ClientConfig {
            placement,
            ..ClientConfig::default()
        };
        self.dma.client(config).unwrap()
    }
    /// Contiguous memory of the test's own.
    pub fn memory(&self, pages: u64) -> PhysAddr {
        let first = self.p.frame_alloc().unwrap().page();
        for nth in 1..pages {
            let next = self.p.frame_alloc().unwrap().page();
            assert_eq!(next.0, first.0 + nth, "the arena is fresh");
        }
        first.addr()
    }
    pub fn poke(&self, at: PhysAddr, bytes: &[u8]) {
        self.p.write(bytes, at).unwrap();
    }
    pub fn peek(&self, at: PhysAddr, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.p.read(at, &mut bytes).unwrap();
        bytes
    }
    /// Where a device's access ends up, if it is permitted.
    fn translate(&self, at: Iova, kind: AccessKind) -> Option<PhysAddr> {
        let (page, perm) = self.domain.translator().table().walk(&*self.p, at.page())?;
        perm.allows(kind)
            .then(|| PhysAddr(page.addr().0 + at.offset()))
    }
    /// What the device reads; `None` is a fault.
    pub fn device_read(&self, at: Iova, len: u64) -> Vec<Option<u8>> {
        (at.0..at.0 + len)
            .map(|at| {
                let at = self.translate(Iova(at), AccessKind::Read)?;
                Some(self.peek(at, 1)[0])
            })
            .collect()
    }
    /// Returns how many bytes it could write.
    pub fn device_write(&self, at: Iova, bytes: &[u8]) -> usize {
        let mut written = 0;
        for (at, byte) in (at.0..).zip(bytes) {
            if let Some(at) = self.translate(Iova(at), AccessKind::Write) {
                self.poke(at, &[*byte]);
                written += 1;
            }
        }
        written
    }
    /// What the device reads in whole pages, all of which it may.
    pub fn device_reads(&self, first: IovaPage, pages: u64) -> Vec<u8> {
        let pages = (first.0..first.0 + pages).map(|page| IovaPage(page).addr());
        let at = pages.map(|page| self.translate(page, AccessKind::Read));
        at.flat_map(|at| self.peek(at.expect("P14: readable"), GRANULE as usize))
            .collect()
    }
    /// Writes `byte` wherever the device may.
    pub fn device_writes(&self, from: Iova, len: u64, byte: u8) {
        let (mut at, end) = (from.0, from.0 + len);
        while at < end {
            let here = (GRANULE - Iova(at).offset()).min(end - at);
            if let Some(to) = self.translate(Iova(at), AccessKind::Write) {
                self.poke(to, &vec![byte; here as usize]);
            }
            at += here;
        }
    }
}
