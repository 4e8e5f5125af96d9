// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A machine whose parts fail on demand: a platform that runs out of frames or cannot copy, and a
//! unit that carries out no invalidation.

#![allow(clippy::disallowed_types)] // a test counts what the platform does

use ioatlas_dma::{
    dma_api::*,
    domain::*,
    invalidation::{Invalidate, InvalidateError, Scope},
    platform::*,
    table::{TableConfig, TableShape, fmt::VtdSecond48},
    translator::{AttachError, Paged, RemappingUnit, Uncached},
    units::*,
};
use ioatlas_host::*;
use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

/// A host that fails on demand.
pub struct Patchy {
    pub host: Host,
    /// Frames that it still gives.
    pub frames_left: AtomicU64,
    /// Whether what was memory is none any more when it is to be copied.
    pub no_copies: AtomicBool,
    /// Invalidations that were carried out.
    flushes: AtomicU64,
    /// The number of them when the last frames were freed: the least.
    freed_after: AtomicU64,
}

impl Patchy {
    fn copies(&self, range: PhysRange) -> Result<(), NotMemoryError> {
        match self.no_copies.load(Relaxed) {
            true => Err(NotMemoryError(range)),
            false => Ok(()),
        }
    }
}

// SAFETY: the host's.
unsafe impl DedicatedMemory for Patchy {}

// SAFETY: the host's, as far as there are frames.
unsafe impl Platform for Patchy {
    type A64 = <Host as Platform>::A64;
    type Lock<T: Send> = <Host as Platform>::Lock<T>;
    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        self.host.pinned(f)
    }
    fn cpus(&self) -> usize {
        self.host.cpus()
    }
    fn frame_alloc(&self) -> Option<FreshFrame> {
        let less = |left: u64| left.checked_sub(1);
        self.frames_left.fetch_update(Relaxed, Relaxed, less).ok()?;
        self.host.frame_alloc()
    }
    fn frame_free(&self, by: Authority, frame: FreshFrame) {
        let flushes = self.flushes.load(Relaxed);
        self.freed_after.fetch_min(flushes, Relaxed);
        self.host.frame_free(by, frame);
    }
    fn entries<'f>(&'f self, by: Authority, frame: FrameRef<'f>) -> &'f [Self::A64] {
        self.host.entries(by, frame)
    }
    fn fence(&self, order: Ordering) {
        self.host.fence(order);
    }
    fn relax(&self) {
        self.host.relax();
    }
    fn unique(&self) -> u64 {
        self.host.unique()
    }
}

// SAFETY: the host's, or refused.
unsafe impl CopyMemory for Patchy {
    fn is_memory(&self, range: PhysRange) -> bool {
        self.host.is_memory(range)
    }
    fn copy(&self, by: Authority, from: PhysRange, to: PhysAddr) -> Result<(), NotMemoryError> {
        self.copies(from)?;
        self.host.copy(by, from, to)
    }
    fn zero(&self, by: Authority, range: PhysRange) -> Result<(), NotMemoryError> {
        self.host.zero(by, range)
    }
    fn read(&self, by: Authority, from: PhysAddr, into: &mut [u8]) -> Result<(), NotMemoryError> {
        self.host.read(by, from, into)
    }
    fn write(&self, by: Authority, from: &[u8], to: PhysAddr) -> Result<(), NotMemoryError> {
        self.host.write(by, from, to)
    }
}

// SAFETY: it gives none.
unsafe impl ContiguousMemory for Patchy {
    fn frames_alloc(&self, _: PageCount) -> Option<FreshRun> {
        None
    }
    fn frames_ptr(&self, _: &FreshRun) -> NonNull<u8> {
        NonNull::dangling()
    }
}

/// Caches nothing, and carries out no invalidation while it fails.
pub struct Unit {
    p: Arc<Patchy>,
    inner: Uncached<Patchy>,
    /// Invalidations that it still carries out.
    left: AtomicU64,
}

// SAFETY: there is no cache; what is refused is refused.
unsafe impl Invalidate for Unit {
    fn on_map(&self) -> ioatlas_dma::invalidation::OnMap {
        ioatlas_dma::invalidation::OnMap::Nothing
    }
    type Token = ();
    fn submit(&self, domain: DomainId, scope: Scope) -> Result<(), InvalidateError> {
        let less = |left: u64| left.checked_sub(1);
        match self.left.fetch_update(Relaxed, Relaxed, less) {
            Ok(_) => {
                self.p.flushes.fetch_add(1, Relaxed);
                self.inner.submit(domain, scope)
            }
            Err(_) => Err(InvalidateError::Refused),
        }
    }
    fn done(&self, (): ()) -> Result<bool, InvalidateError> {
        Ok(true)
    }
}

// SAFETY: the one inside does.
unsafe impl RemappingUnit<Patchy> for Unit {
    fn walks(&self, shape: TableShape) -> bool {
        self.inner.walks(shape)
    }
    fn platform(&self) -> Option<&Arc<Patchy>> {
        None
    }
    fn attach(
        &self,
        by: Authority,
        p: &Patchy,
        device: SourceId,
        domain: DomainId,
        root: PhysPage,
        levels: u32,
    ) -> Result<(), AttachError> {
        self.inner.attach(by, p, device, domain, root, levels)
    }
    fn detach(
        &self,
        by: Authority,
        p: &Patchy,
        device: SourceId,
        domain: DomainId,
    ) -> Result<(), AttachError> {
        self.inner.detach(by, p, device, domain)
    }
    fn domain_id(&self, p: &Patchy) -> Option<DomainId> {
        self.inner.domain_id(p)
    }
    fn release_domain_id(&self, by: Authority, p: &Patchy, id: DomainId) {
        self.inner.release_domain_id(by, p, id);
    }
}

pub type Tables = Paged<Patchy, VtdSecond48, Arc<Unit>>;
pub type Dev = Client<Patchy, Tables>;

pub struct Rig {
    pub p: Arc<Patchy>,
    unit: Arc<Unit>,
    pub dma: Arc<Dma<Patchy, Tables>>,
}

impl Rig {
    pub fn new(policy: PolicyConfig) -> Self {
        let host = Host::new(HostConfig::default().frames(2048).slots(3));
        let p = Arc::new(Patchy {
            host,
            frames_left: AtomicU64::new(u64::MAX),
            no_copies: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            freed_after: AtomicU64::new(u64::MAX),
        });
        let unit = Arc::new(Unit {
            p: p.clone(),
            inner: Uncached::new(),
            left: AtomicU64::new(u64::MAX),
        });
        let dma = dma(&p, &unit, policy);
        Rig { p, unit, dma }
    }
    /// A second domain of the same unit.
    pub fn another(&self, policy: PolicyConfig) -> Arc<Dma<Patchy, Tables>> {
        dma(&self.p, &self.unit, policy)
    }
    pub fn client(&self, placement: Placement) -> Dev {
        client(&self.dma, placement)
    }
    pub fn fail(&self, fails: bool) {
        self.fail_after(if fails { 0 } else { u64::MAX });
    }
    /// So many invalidations are carried out, and no more.
    pub fn fail_after(&self, left: u64) {
        self.unit.left.store(left, Relaxed);
    }
    /// From now on it gives so many frames more.
    pub fn frames_left(&self, left: u64) {
        self.p.frames_left.store(left, Relaxed);
    }
    /// Does `work`, and says whether a frame was freed before an invalidation was carried out.
    pub fn frees_unflushed(&self, work: impl FnOnce()) -> bool {
        let began = self.p.flushes.load(Relaxed);
        self.p.freed_after.store(u64::MAX, Relaxed);
        work();
        self.p.freed_after.load(Relaxed) == began
    }
    pub fn in_use(&self) -> usize {
        self.p.host.frames_in_use()
    }
}

pub fn client(dma: &Arc<Dma<Patchy, Tables>>, placement: Placement) -> Dev {
    let config = ClientConfig::default().placement(placement);
    dma.client(config).unwrap()
}

fn dma(p: &Arc<Patchy>, unit: &Arc<Unit>, policy: PolicyConfig) -> Arc<Dma<Patchy, Tables>> {
    let tables = Paged::new(p, unit.clone(), TableConfig::default()).unwrap();
    let config = DomainConfig::new(AllocatorConfig::Magazine(Default::default()), policy);
    let domain = Domain::new(p.clone(), tables, config).unwrap();
    Arc::new(Dma::new(Arc::new(domain), DmaConfig::default()))
}
