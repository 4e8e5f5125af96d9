// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The machine that every test runs on: a host or simulated platform, a software unit, its driver, and the oracle.

use ioatlas_dma::{
    domain::*,
    grace::WaitLimit,
    iova::MagazineConfig,
    platform::{
        PhysMemory, Platform,
        host::{Host, HostConfig},
        sim::{Sim, SimConfig},
    },
    table::{
        Format,
        fmt::{Toy, VtdSecond48},
    },
    units::*,
};
use ioatlas_viommu::{
    config::{Geometry, UnitConfig},
    machine::{WatchedDomain, WatchedMachine},
    observe::Outcome,
    oracle::{Failing, Oracle},
};
use ioatlas_vtd::driver;

/// A platform that the suite runs on.
pub trait Base: Platform + PhysMemory<Self> + Sized {
    fn make(frames: usize) -> Self;
    fn frames_in_use(&self) -> usize;
}

impl Base for Host {
    fn make(frames: usize) -> Self {
        Host::new(HostConfig { frames, slots: 4 })
    }
    fn frames_in_use(&self) -> usize {
        Host::frames_in_use(self)
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
}

/// Formats under test.
pub type Vtd = VtdSecond48;
pub type Small = Toy<2, 3>;

pub const NIC: SourceId = SourceId(0x0020);
pub const DISK: SourceId = SourceId(0x0108);

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
    for assigner in [AssignerConfig::Rbtree, AssignerConfig::Magazine(magazines)] {
        for policy in [PolicyConfig::Strict, PolicyConfig::DeferredPerCpu(deferred)] {
            all.push(DomainConfig {
                wait_limit: WaitLimit(200_000),
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
        let mut config = UnitConfig::new(Geometry::of::<F>());
        adjust(&mut config);
        let base = Failing::new(B::make(frames));
        let host = driver::Config {
            limit: WaitLimit(200_000),
            ..driver::Config::default()
        };
        let machine = WatchedMachine::new(base, &config, Oracle::new(), host);
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
    pub fn assert_clean(&self) {
        self.machine.oracle().assert_clean();
        self.machine.machine().unit().audit().expect("the unit");
    }
}

/// `pages` whole pages from physical page `first`.
pub fn buffer(first: u64, pages: u64) -> PhysRange {
    PhysRange::new(PhysPage(first).addr(), ByteCount(pages * GRANULE))
}
