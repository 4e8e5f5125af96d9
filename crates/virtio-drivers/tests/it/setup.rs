// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A machine with a device, and the end of it, by which everything must be back.
//!
//! `Hal` has no receiver, so its device is a static: one of the test's own thread, as each test is
//! a thread, and the device works in the driver's calls.

use crate::disk::Disk;
use crate::platform::{Process, phys};
use crate::port::{ACCESS_PLATFORM, Model, Port, VERSION_1};
use crate::soft::*;
use ioatlas_dma::{dma_api::*, domain::DomainConfig, table::fmt::VtdSecond48, units::*};
use ioatlas_viommu::machine::{Machine, SoftDomain};
use ioatlas_virtio_drivers::{Device, Translated, hal};
use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use virtio_drivers::device::blk::VirtIOBlk;

thread_local! {
    static FIRST: Cell<Option<&'static Device>> = const { Cell::new(None) };
    static SECOND: Cell<Option<&'static Device>> = const { Cell::new(None) };
}
hal!(pub FirstHal, || FIRST.get().expect("the test has made it"));
hal!(pub SecondHal, || SECOND.get().expect("the test has made it"));

/// What drivers know.
pub const MODERN: u64 = VERSION_1 | ACCESS_PLATFORM;

/// Buffers of up to 9 pages, so that some have whole granules within, are bounced up to 2.
pub const UNTRUSTED: Placement = Placement::Untrusted {
    whole_up_to: ByteCount(2 * GRANULE),
};

/// A machine, and one device with its domain.
pub struct Setup<M = Disk> {
    pub machine: Arc<Machine<Process>>,
    pub dma: Arc<SoftDma>,
    pub device: &'static Device,
    pub port: Port<M>,
}

/// How requests are protected.
#[derive(Clone, Copy, Debug)]
pub struct Protection {
    pub placement: Placement,
    pub domain: DomainConfig,
}

impl Protection {
    pub fn strict(placement: Placement) -> Self {
        Protection {
            placement,
            domain: strict(),
        }
    }
    pub fn deferred(placement: Placement) -> Self {
        Protection {
            placement,
            domain: deferred(),
        }
    }
}

impl Setup {
    pub fn new(protection: Protection) -> Self {
        Self::of(protection, MODERN, phys)
    }

    /// A disk that offers `features`, whose buffers lie where `phys` says.
    pub fn of(
        protection: Protection,
        features: u64,
        phys: impl Fn(NonNull<u8>) -> PhysAddr + Send + Sync + 'static,
    ) -> Self {
        let machine = machine(FRAMES);
        Self::with(machine, protection, SourceId(0x20), features, phys)
    }

    /// Two disks of one machine, each in a domain of its own, where buffers are.
    pub fn pair() -> (Self, Self) {
        let machine = machine(FRAMES);
        let protection = Protection::strict(Placement::Never);
        let disk = |source| Self::with(machine.clone(), protection, source, MODERN, phys);
        (disk(SourceId(0x20)), disk(SourceId(0x28)))
    }

    /// Ends both, and their machine.
    pub fn end_pair(first: Self, second: Self) {
        drop(first.end_disk());
        second.end();
    }

    /// A disk of `machine` that offers `features`, whose buffers lie where `phys` says.
    pub fn with(
        machine: Arc<Machine<Process>>,
        protection: Protection,
        source: SourceId,
        features: u64,
        phys: impl Fn(NonNull<u8>) -> PhysAddr + Send + Sync + 'static,
    ) -> Self {
        Self::with_model(machine, protection, source, features, phys, Disk::new())
    }

    /// Its driver.
    pub fn driver(&self) -> VirtIOBlk<FirstHal, Translated<Port<Disk>>> {
        VirtIOBlk::new(self.transport()).unwrap()
    }
    /// The same by the other `Hal`.
    pub fn second_driver(&self) -> VirtIOBlk<SecondHal, Translated<Port<Disk>>> {
        SECOND.set(Some(self.device));
        VirtIOBlk::new(self.device.transport(self.port.clone()).unwrap()).unwrap()
    }
}

impl<M: Model> Setup<M> {
    /// A device of `machine` that is this `model`.
    pub fn with_model(
        machine: Arc<Machine<Process>>,
        protection: Protection,
        source: SourceId,
        features: u64,
        phys: impl Fn(NonNull<u8>) -> PhysAddr + Send + Sync + 'static,
        model: M,
    ) -> Self {
        let domain = machine.domain::<VtdSecond48>(protection.domain).unwrap();
        domain.attach(source).unwrap();
        let port = Port::new(machine.clone(), source, features, model);
        let dma = Arc::new(Dma::new(Arc::new(domain), DmaConfig::default()));
        let config = ClientConfig::default().placement(protection.placement);
        let client = dma.client(config).unwrap();
        // SAFETY: physical addresses are the process's own, or of another view of the same bytes;
        // tests that reach a buffer that is shared do so by the unit. What the device could do
        // beside a buffer no test has it do.
        let device = unsafe { Device::new(client, phys, |_, _| panic!("it is not on PCI")) };
        Setup {
            machine,
            dma,
            device: Box::leak(Box::new(device)),
            port,
        }
    }

    /// Makes [`FirstHal`] lead to its device, in this thread.
    pub fn use_first(&self) {
        FIRST.set(Some(self.device));
    }
    /// What its driver is made of; [`FirstHal`] leads to it from then on.
    pub fn transport(&self) -> Translated<Port<M>> {
        self.use_first();
        self.device.transport(self.port.clone()).unwrap()
    }

    pub fn domain(&self) -> &SoftDomain<Process, VtdSecond48> {
        self.dma.domain()
    }
    pub fn frames_in_use(&self) -> u64 {
        self.machine.platform().frames_in_use()
    }
    /// Faults that the unit has recorded since the last call.
    pub fn faults(&self) -> usize {
        self.machine.unit().take_faults().records.len()
    }

    /// Ends all of it after the drivers are dropped: nothing is mapped, and no frame taken.
    pub fn end(self) {
        end_machine(self.end_disk());
    }

    /// Ends the device and its domain, and leaves the machine.
    pub fn end_disk(self) -> Arc<Machine<Process>> {
        let Setup {
            machine,
            dma,
            device,
            port,
        } = self;
        drop(port);
        FIRST.set(None);
        SECOND.set(None);
        // SAFETY: it was leaked by `with`, and nothing has the reference any more.
        drop(unsafe { Box::from_raw(ptr::from_ref(device).cast_mut()) });
        end_domain(dma);
        machine
    }
}
