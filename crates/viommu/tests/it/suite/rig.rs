// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The machine that every test runs on: a host or simulated platform, a software unit, its driver,
//! and the oracle.

use ioatlas_dma::{
    design::{self, Design},
    domain::*,
    invalidation::{CombiningConfig, WaitLimit},
    iova::*,
    platform::{CopyMemory, DedicatedMemory, PhysMemory},
    table::{
        Format, Reclaim, TableConfig,
        fmt::{Toy, VtdSecond48},
    },
    units::*,
};
use ioatlas_host::{Host, HostConfig, register};
use ioatlas_sim::platform::{Schedule, Sim, SimConfig, World};
use ioatlas_viommu::{
    config::{Geometry, UnitConfig},
    machine::{MachineError, WatchedDomain, WatchedDomainPending, WatchedMachine},
    observe::Outcome,
    oracle::{Failing, Oracle},
};
use ioatlas_vtd::driver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A platform that the suite runs on.
pub trait Base: CopyMemory + DedicatedMemory + PhysMemory<Self> + Sized {
    fn make(frames: usize) -> Self;
    fn frames_in_use(&self) -> usize;
    /// Runs `f` to its end as another CPU than the tests are.
    fn on_another_cpu(&self, f: impl FnOnce() + Send);
}

impl Base for Host {
    fn make(frames: usize) -> Self {
        // the slots are the process's: other tests take some meanwhile
        let host = Host::new(HostConfig::default().frames(frames).slots(32));
        host.with_heap(ARENA).expect("room for an arena")
    }
    fn frames_in_use(&self) -> usize {
        Host::frames_in_use(self)
    }
    fn on_another_cpu(&self, f: impl FnOnce() + Send) {
        let other = || {
            register();
            f();
        };
        std::thread::scope(|scope| scope.spawn(other).join()).expect("the other thread");
    }
}

impl Base for Sim {
    fn make(frames: usize) -> Self {
        let sim = Sim::new(SimConfig {
            frames: frames as u64,
            ..SimConfig::default()
        });
        sim.with_heap(ARENA).expect("room for an arena")
    }
    fn frames_in_use(&self) -> usize {
        Sim::frames_in_use(self)
    }
    fn on_another_cpu(&self, f: impl FnOnce() + Send) {
        let schedule = Schedule::Bounded {
            seed: 1,
            preemptions: 0,
        };
        World::new(schedule).cpu(|| ()).cpu(f).run();
    }
}

/// Formats under test.
pub type Vtd = VtdSecond48;
pub type Small = Toy<2, 3>;
/// Small too, with room for the regions of `identity` and the arena of `kmalloc`.
pub type Wide = Toy<3, 5>;

/// The heap of every platform. Blocks have 8 bytes at least.
pub const ARENA: ByteCount = ByteCount(1 << 12);

pub const NIC: SourceId = SourceId(0x0020);
pub const DISK: SourceId = SourceId(0x0108);

/// How long to wait for the unit. It acts within the register write, so a turn is too many already.
pub const LIMIT: WaitLimit = WaitLimit(2_000);
/// Hours of waiting, for threads: those with an access to be drained may be off their cores for
/// long, and no test depends on speed.
pub const PATIENT: WaitLimit = WaitLimit(1 << 40);

/// Whatever the CPUs; and one that waits takes over soon.
const COMBINED: CombiningConfig = CombiningConfig::DEFAULT
    .cpus_min(1)
    .take_over(8)
    .ranges_max(2);

/// What a mutex holds, whether or not a thread has panicked with it: that one's test says why.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Every allocator that chooses from an aperture of its own, with every policy.
pub fn designs() -> Vec<DomainConfig> {
    let registered = design::all().map(|design| small(design.domain));
    registered.filter(chooses_freely).collect()
}

/// The other designs, whose IOVAs follow from an address, of a buffer or of a block of the heap.
/// None where `F` is too small for them: they need a space of this many pages.
pub fn by_address<F: Format>() -> Vec<DomainConfig> {
    let pages = F::aperture().pages.0;
    if pages < 4 * ARENA.0 {
        return Vec::new();
    }
    let registered = design::all().map(|design| small(design.domain));
    let mut all: Vec<_> = registered.filter(|d| !chooses_freely(d)).collect();
    for design in &mut all {
        if let AllocatorConfig::Identity(widths) = &mut design.allocator {
            let spare = pages.ilog2() + GRANULE_LG2 - 2;
            widths.phys_bits = widths.phys_bits.min(spare);
        }
    }
    all
}

/// All of them: for what tests no expectation of one design, but that nothing unsafe is ever seen.
pub fn core_designs<F: Format>() -> Vec<DomainConfig> {
    let mut all = designs();
    all.extend(by_address::<F>());
    all
}

/// Whether the allocator may give any free page of its aperture to any request.
pub fn chooses_freely(design: &DomainConfig) -> bool {
    match design.allocator {
        AllocatorConfig::Plain(_) | AllocatorConfig::Magazine(_) => true,
        AllocatorConfig::Identity(_) | AllocatorConfig::Kmalloc(_) => false,
        new => panic!("{new:?} is new here"),
    }
}

/// The design with sizes small enough for tests to reach their edges.
fn small(design: DomainConfig) -> DomainConfig {
    let magazines = |sizes: MagazineConfig| sizes.magazine_len(4).depot_full_max(2).run(2);
    let allocator = match design.allocator {
        AllocatorConfig::Plain(BackingConfig::Eiovar(_)) => AllocatorConfig::Plain(
            BackingConfig::Eiovar(EiovarConfig::DEFAULT.list_len(4).classes(3)),
        ),
        AllocatorConfig::Plain(backing) => AllocatorConfig::Plain(backing),
        AllocatorConfig::Magazine(sizes) => AllocatorConfig::Magazine(magazines(sizes)),
        AllocatorConfig::Identity(widths) => {
            AllocatorConfig::Identity(widths.fallback(magazines(widths.fallback)))
        }
        AllocatorConfig::Kmalloc(sizes) => {
            AllocatorConfig::Kmalloc(KmallocConfig::default().fallback(magazines(sizes.fallback)))
        }
        new => panic!("{new:?} is new here"),
    };
    let deferred = DeferredConfig::DEFAULT
        .batch(5)
        .window(TimeNs(10_000_000))
        .tick_budget(4);
    let policy = match design.policy {
        PolicyConfig::DeferredPerCpu(_) => PolicyConfig::DeferredPerCpu(deferred),
        PolicyConfig::DeferredGlobal(_) => PolicyConfig::DeferredGlobal(deferred),
        PolicyConfig::MacOs(_) => PolicyConfig::MacOs(MacOsConfig::DEFAULT.depth(4)),
        policy @ (PolicyConfig::Strict | PolicyConfig::FreeBsd | PolicyConfig::Solaris) => policy,
        new => panic!("{new:?} is new here"),
    };
    design.allocator(allocator).policy(policy).wait_limit(LIMIT)
}

/// Every kind of tables: each rule of reclaim, with leaves of every size.
pub fn all_tables() -> Vec<TableConfig> {
    let reclaim = [Reclaim::Covered, Reclaim::Emptied, Reclaim::Never];
    let table = |(reclaim, largest_leaf)| {
        TableConfig::DEFAULT
            .reclaim(reclaim)
            .largest_leaf(largest_leaf)
    };
    let both = reclaim.map(|r| (1..=3).map(move |largest| (r, largest)));
    both.into_iter().flatten().map(table).collect()
}

pub fn name(design: &DomainConfig) -> String {
    format!("{} {}", design.allocator.name(), design.policy.name())
}

/// Machine and oracle, before any domain.
pub struct Rig<B: Base> {
    pub machine: WatchedMachine<Failing<B>>,
}

pub type Dom<B, F> = WatchedDomain<Failing<B>, F>;
pub type Pending<'d, B, F> = WatchedDomainPending<'d, Failing<B>, F>;

impl<B: Base> Rig<B> {
    pub fn new<F: Format>(frames: usize) -> Self {
        Self::with::<F>(frames, |_| ())
    }
    /// With a unit that `adjust` has changed.
    pub fn with<F: Format>(frames: usize, adjust: impl FnOnce(&mut UnitConfig)) -> Self {
        Self::watched_by::<F>(Oracle::new(), frames, adjust)
    }
    /// With a unit that `adjust` has changed, and an oracle with a clock.
    pub fn watched_by<F: Format>(
        oracle: Arc<Oracle>,
        frames: usize,
        adjust: impl FnOnce(&mut UnitConfig),
    ) -> Self {
        let base = Failing::new(B::make(frames));
        let machine = machine_on::<B, F>(base, oracle, adjust);
        Rig {
            machine: machine.expect("a machine"),
        }
    }
    /// A domain with the NIC attached.
    pub fn domain<F: Format>(&self, design: impl Into<Design>) -> Dom<B, F> {
        let domain = self.machine.domain::<F>(design).expect("a domain");
        domain.attach(NIC).expect("attached");
        domain
    }
    /// The same, whose requests to the unit are combined.
    pub fn combining<F: Format>(&self, design: impl Into<Design>) -> Dom<B, F> {
        let domain = self.machine.combining::<F>(design, COMBINED);
        let domain = domain.expect("a domain");
        domain.attach(NIC).expect("attached");
        domain
    }
    /// Where an access of the NIC goes, or `None` if it is blocked.
    pub fn access(&self, at: IovaPage, kind: AccessKind) -> Option<PhysPage> {
        self.access_by(NIC, at, kind)
    }
    pub fn access_by(&self, source: SourceId, at: IovaPage, kind: AccessKind) -> Option<PhysPage> {
        match self
            .machine
            .machine()
            .unit()
            .access(source, at, kind)
            .outcome
        {
            Outcome::Translated { page, .. } => Some(page),
            Outcome::Fault(_) => None,
            Outcome::PassedThrough { .. } => panic!("the unit translates nothing"),
        }
    }
    pub fn failing(&self) -> &Failing<B> {
        self.machine.machine().platform().inner()
    }
    pub fn frames_in_use(&self) -> usize {
        self.failing().inner().frames_in_use()
    }
    /// Checks that the domain adds up, ends it, and that nothing was violated.
    pub fn close<F: Format>(&self, domain: Dom<B, F>, devices: &[SourceId]) {
        let what = domain.domain().to_string();
        domain
            .domain()
            .audit()
            .unwrap_or_else(|e| panic!("{e}: {what}"));
        domain
            .close(devices)
            .unwrap_or_else(|e| panic!("{e}: {what}"));
        self.assert_clean();
    }
    /// Shuts the unit down, after which not one frame may be in use.
    pub fn end(self) {
        self.assert_clean();
        let platform = self.machine.machine().platform().clone();
        let ended = self.machine.into_machine().shut_down();
        ended.expect("a unit that can be shut down");
        assert_eq!(platform.inner().inner().frames_in_use(), 0, "frames left");
    }
    pub fn assert_clean(&self) {
        self.machine.oracle().assert_clean();
        self.machine.machine().unit().audit().expect("the unit");
    }
}

/// Brings a unit up on `base`.
pub fn machine_on<B: Base, F: Format>(
    base: Failing<B>,
    oracle: Arc<Oracle>,
    adjust: impl FnOnce(&mut UnitConfig),
) -> Result<WatchedMachine<Failing<B>>, MachineError> {
    let mut config = UnitConfig::new(Geometry::of::<F>());
    adjust(&mut config);
    let host = driver::Config::default().limit(LIMIT);
    WatchedMachine::new(base, &config, oracle, host)
}

/// What becomes of what unmap retires, by what its policy promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Afterwards {
    /// It is freed when unmap returns.
    Never,
    /// A batch, a tick or a flush invalidates.
    Batched,
    /// Unmap has started an invalidation; this unit is done with it at once, but things are freed
    /// later.
    Started,
    /// The next map of the range invalidates. What holds frames, or was chosen by the caller, is
    /// freed when unmap returns.
    Kept,
}

pub fn afterwards(design: &DomainConfig) -> Afterwards {
    match design.policy.exposure(1) {
        Exposure::None => Afterwards::Never,
        Exposure::Bounded { time: Some(_), .. } => Afterwards::Batched,
        Exposure::Bounded { time: None, .. } => Afterwards::Started,
        Exposure::Unbounded => Afterwards::Kept,
    }
}
pub fn is_strict(design: &DomainConfig) -> bool {
    afterwards(design) == Afterwards::Never
}
pub fn is_batched(design: &DomainConfig) -> bool {
    afterwards(design) == Afterwards::Batched
}
/// Whether tables and consistent memory wait for the next call at least.
pub fn holds_frames(design: &DomainConfig) -> bool {
    matches!(
        afterwards(design),
        Afterwards::Batched | Afterwards::Started
    )
}
/// The design with these bounds, where it batches.
pub fn with_bounds(mut design: DomainConfig, bounds: DeferredConfig) -> DomainConfig {
    if let PolicyConfig::DeferredPerCpu(old) | PolicyConfig::DeferredGlobal(old) =
        &mut design.policy
    {
        *old = bounds;
    }
    design
}

/// How many pages one leaf table maps.
pub fn span<F: Format>() -> u64 {
    1 << F::ENTRIES_LG2
}

/// `pages` whole pages from physical page `first`.
pub fn buffer(first: u64, pages: u64) -> PhysRange {
    PhysRange::new(PhysPage(first).addr(), ByteCount(pages * GRANULE))
}
