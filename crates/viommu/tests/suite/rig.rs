// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The machine that every test runs on: a host or simulated platform, a software unit, its driver, and the oracle.

use ioatlas_dma::{
    domain::*,
    grace::WaitLimit,
    iova::MagazineConfig,
    platform::{
        PhysMemory, Platform,
        host::{Host, HostConfig, register},
        sim::{Schedule, Sim, SimConfig, World},
    },
    table::{
        Format,
        fmt::{Toy, VtdSecond48},
    },
    units::*,
};
use ioatlas_viommu::{
    config::{Geometry, UnitConfig},
    machine::{MachineError, WatchedDomain, WatchedMachine},
    observe::Outcome,
    oracle::{Failing, Oracle},
};
use ioatlas_vtd::driver;
use std::sync::Arc;

/// A platform that the suite runs on.
pub trait Base: Platform + PhysMemory<Self> + Sized {
    fn make(frames: usize) -> Self;
    fn frames_in_use(&self) -> usize;
    /// Runs `f` to its end as another CPU than the tests are.
    fn on_another_cpu(&self, f: impl FnOnce() + Send);
}

impl Base for Host {
    fn make(frames: usize) -> Self {
        // the slots are the process's: other tests take some meanwhile
        Host::new(HostConfig { frames, slots: 32 })
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
        Sim::new(SimConfig {
            frames: frames as u64,
            ..SimConfig::default()
        })
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

pub const NIC: SourceId = SourceId(0x0020);
pub const DISK: SourceId = SourceId(0x0108);

/// How long to wait for the unit. It acts within the register write, so a turn is too many already.
pub const LIMIT: WaitLimit = WaitLimit(2_000);

/// Every assigner x policy, with sizes small enough for tests to reach their edges.
pub fn designs() -> Vec<DomainConfig> {
    let magazines = MagazineConfig {
        magazine_len: 4,
        depot_full_max: 2,
        run: 2,
        ..MagazineConfig::default()
    };
    let deferred = DeferredConfig {
        batch: 5,
        window: TimeNs(10_000_000),
        tick_budget: 4,
    };
    let mut all = Vec::new();
    for assigner in [AssignerConfig::RBTREE, AssignerConfig::Magazine(magazines)] {
        for policy in [
            PolicyConfig::Strict,
            PolicyConfig::FreeBsd,
            PolicyConfig::DeferredPerCpu(deferred),
            PolicyConfig::DeferredGlobal(deferred),
            PolicyConfig::MacOs(MacOsConfig { depth: 4 }),
            PolicyConfig::Solaris,
        ] {
            all.push(DomainConfig {
                wait_limit: LIMIT,
                ..DomainConfig::new(assigner, policy)
            });
        }
    }
    all
}

pub fn name(design: &DomainConfig) -> String {
    format!("{} {}", design.assigner.name(), design.policy.name())
}

/// Machine and oracle, before any domain.
pub struct Rig<B: Base> {
    pub machine: WatchedMachine<Failing<B>>,
}

pub type Dom<B, F> = WatchedDomain<Failing<B>, F>;

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
    pub fn domain<F: Format>(&self, design: DomainConfig) -> Dom<B, F> {
        let domain = self.machine.domain::<F>(design).expect("a domain");
        domain.attach(NIC).expect("attached");
        domain
    }
    /// Where an access of the NIC goes, or `None` if it is blocked.
    pub fn access(&self, at: IovaPage, kind: AccessKind) -> Option<PhysPage> {
        self.access_by(NIC, at, kind)
    }
    pub fn access_by(&self, who: SourceId, at: IovaPage, kind: AccessKind) -> Option<PhysPage> {
        match self.machine.machine().unit().access(who, at, kind).outcome {
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
    let host = driver::Config {
        limit: LIMIT,
        ..driver::Config::default()
    };
    WatchedMachine::new(base, &config, oracle, host)
}

/// What becomes of what unmap retires, by what its policy promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Afterwards {
    /// It is home when unmap returns.
    Never,
    /// A batch, a tick or a flush invalidates.
    Batched,
    /// Unmap has started an invalidation; this unit is done with it at once, but things go home later.
    Started,
    /// The next map of the range invalidates. What holds frames, or was chosen by the caller, is home when unmap returns.
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
