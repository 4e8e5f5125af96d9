// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A host, a domain, and a device that goes through the domain's table at every access.

use ioatlas_dma::{
    dma_api::*,
    domain::*,
    table::{TableConfig, fmt::VtdSecond48},
    translator::{Paged, Uncached},
    units::*,
};
use ioatlas_host::*;
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
        let p = Arc::new(Host::new(HostConfig::default().frames(frames).slots(3)));
        let table = Paged::new(&p, Uncached::new(), TableConfig::default()).unwrap();
        let domain = Arc::new(Domain::new(p.clone(), table, domain).unwrap());
        let dma = Arc::new(Dma::new(domain.clone(), config));
        Rig { p, domain, dma }
    }
    /// Where a device's access ends up, if it is permitted.
    pub fn translate(&self, at: Iova, kind: AccessKind) -> Option<PhysAddr> {
        let (page, perm) = self.domain.translator().table().walk(&*self.p, at.page())?;
        perm.allows(kind)
            .then(|| PhysAddr(page.addr().0 + at.offset()))
    }
}
