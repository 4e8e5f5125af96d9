// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the core's suite asks of its rig: a host, a domain, and a device that goes through the
//! kernel's mappings at every access.

use crate::BY;
use ioatlas_dma::{dma_api::*, domain::*, units::*};
use ioatlas_host::*;
use ioatlas_vfio::{device::PciAddress, simulated::*, space::Container, translator::Vfio};
use rustix::fs::{MemfdFlags, memfd_create};
use std::{fs::File, sync::Arc};

pub type Tables = Vfio<Container<Simulated>>;

pub struct Rig {
    pub p: Arc<Host>,
    pub domain: Arc<Domain<Host, Tables>>,
    pub dma: Arc<Dma<Host, Tables>>,
    kernel: Simulated,
}

fn device() -> PciAddress {
    "00:04.0".parse().expect("an address")
}

impl Rig {
    pub fn new(config: DmaConfig) -> Self {
        Self::with(config, 4096, DomainConfig::default())
    }
    pub fn with(config: DmaConfig, frames: usize, domain: DomainConfig) -> Self {
        // of a file, since pages of a heap are not aligned
        let file = File::from(memfd_create("arena", MemfdFlags::CLOEXEC).unwrap());
        file.set_len((frames as u64) << GRANULE_LG2).unwrap();
        let host = HostConfig::default().frames(frames).slots(3);
        let p = Arc::new(Host::on_file(&file, PhysPage(0), host).unwrap());
        let kernel = Simulated::new(Machine::usual());
        let space = Container::open(Arc::new(kernel.clone()), &[device()]).unwrap();
        let domain = Arc::new(Vfio::domain(p.clone(), space, domain).unwrap());
        domain.attach(device().source()).unwrap();
        let dma = Arc::new(Dma::new(domain.clone(), config));
        Rig {
            p,
            domain,
            dma,
            kernel,
        }
    }
    /// Where a device's access ends up, if it is permitted.
    pub fn translate(&self, at: Iova, kind: AccessKind) -> Option<PhysAddr> {
        let memory = self.kernel.reach(device(), at, kind)?;
        let base = self.p.words(BY).as_ptr() as u64;
        Some(PhysAddr(memory.0 - base))
    }
}
