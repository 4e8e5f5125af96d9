// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A simulated kernel, a space of either kind, and a domain over it.

use ioatlas_dma::{
    design,
    domain::*,
    iova::{BackingConfig, IdentityConfig, MagazineConfig},
    units::*,
};
use ioatlas_vfio::{
    device::{Device, PciAddress},
    error::OpenError,
    platform::*,
    simulated::*,
    space::*,
    translator::*,
};
use std::sync::Arc;

pub type Dom = Domain<UserSpace, Vfio<AnySpace<Simulated>>>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Type1,
    Iommufd,
}

pub const KINDS: [Kind; 2] = [Kind::Type1, Kind::Iommufd];

impl Kind {
    pub fn open(
        self,
        kernel: &Simulated,
        addresses: &[PciAddress],
    ) -> Result<AnySpace<Simulated>, OpenError> {
        let kernel = Arc::new(kernel.clone());
        let kind = match self {
            Kind::Type1 => SpaceKind::Type1,
            Kind::Iommufd => SpaceKind::Iommufd,
        };
        AnySpace::open_as(kind, kernel, addresses)
    }
}

/// 0000:00:04.0.
pub fn nvme() -> PciAddress {
    "00:04.0".parse().expect("an address")
}

pub struct Rig {
    pub kernel: Simulated,
    pub device: Device<Simulated>,
    pub memory: Arc<UserSpace>,
    pub domain: Arc<Dom>,
}

impl Rig {
    pub fn new(kind: Kind, config: DomainConfig) -> Self {
        Self::on(Machine::usual(), kind, config)
    }
    pub fn strict(kind: Kind) -> Self {
        Self::new(kind, DomainConfig::default())
    }
    pub fn on(machine: Machine, kind: Kind, config: DomainConfig) -> Self {
        let kernel = Simulated::new(machine);
        let space = kind.open(&kernel, &[nvme()]).expect("it opens");
        let device = space.devices()[0].clone();
        let memory = memory(4096);
        let domain = Vfio::domain(memory.clone(), space, config).expect("a domain");
        domain.attach(nvme().source()).expect("it attaches");
        Rig {
            kernel,
            device,
            memory,
            domain: Arc::new(domain),
        }
    }
    pub fn buffer(&self, pages: u64) -> Buffer {
        self.memory.buffer(ByteCount(pages << 12)).expect("memory")
    }
    /// Where an access of the device ends up.
    pub fn reach(&self, iova: Iova, kind: AccessKind) -> Option<u64> {
        self.kernel.reach(nvme(), iova, kind).map(|at| at.0)
    }
    pub fn reads(&self, iova: Iova) -> Option<u64> {
        self.reach(iova, AccessKind::Read)
    }
    pub fn calls(&self) -> Calls {
        self.domain.translator().calls()
    }
}

/// A low arena, since some designs need one.
pub fn memory(pages: u64) -> Arc<UserSpace> {
    let config = UserSpaceConfig::default()
        .pages(PageCount(pages))
        .place(ArenaPlace::Below(37))
        .kind(Pages::Small)
        .slots(6);
    Arc::new(UserSpace::new(config).expect("room below 2^37"))
}

/// What identity needs on an IOMMU of 39 bits.
pub fn identity() -> AllocatorConfig {
    AllocatorConfig::Identity(
        IdentityConfig::default()
            .phys_bits(37)
            .fallback(MagazineConfig::default()),
    )
}

/// Every allocator that this platform has (there is no heap, which `kmalloc` needs), with every
/// policy.
pub fn designs() -> Vec<(String, DomainConfig)> {
    let mut all = Vec::new();
    for allocator in design::allocators() {
        let config = match allocator.config {
            AllocatorConfig::Kmalloc(_) => continue,
            AllocatorConfig::Identity(_) => identity(),
            // its blocks end at powers of two, so an aperture of 39 bits is one
            other => other,
        };
        for policy in design::policies() {
            let name = format!("{}, {}", allocator.name, policy.name);
            all.push((name, DomainConfig::new(config, policy.config)));
        }
    }
    all
}

pub fn rbtree(policy: PolicyConfig) -> DomainConfig {
    DomainConfig::new(AllocatorConfig::Plain(BackingConfig::Rbtree), policy)
}
