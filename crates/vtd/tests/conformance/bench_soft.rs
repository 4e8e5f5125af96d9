// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The software unit, made like QEMU's: one fault record, one record for a source, a queue that
//! goes on when its tail is written, no walk caches, every width of leaf; in front of a machine
//! with the same memory.

use crate::BY;
use crate::bench::*;
use ioatlas_dma::{
    platform::{Ordering, PhysMemory},
    units::*,
};
use ioatlas_host::*;
use ioatlas_viommu::{config::*, observe::Outcome, unit::SoftUnit};
use ioatlas_vtd::{layout::AddressWidth, registers::*};
use std::sync::Arc;

pub type Soft = SoftUnit<Host, Host>;

pub struct SoftBench {
    host: Arc<Host>,
    unit: Arc<Soft>,
    width: AddressWidth,
    config: UnitConfig,
}

/// What QEMU's unit has, as far as this one can be like it.
pub fn config(width: AddressWidth) -> UnitConfig {
    let mut config = UnitConfig::new(match width {
        AddressWidth::Bits39 => Geometry::VTD_39,
        AddressWidth::Bits48 => Geometry::VTD_48,
        AddressWidth::Bits57 => Geometry::VTD_57,
    });
    config.caches.context = 256;
    config.caches.iotlb = SetGeometry {
        entries: 1024,
        ways: 1024,
    };
    config.caches.walk = vec![];
    config.caches.large = vec![256, 256];
    config.fault_records = 1;
    config.registers.collapse = Collapse::SameSource;
    config.registers.restart = Restart::TailWritten;
    config.features.pass_through = true;
    config.features.largest_leaf = 3;
    config.features.coherent = false;
    config.features.phys_bits = width.bits();
    config
}

impl SoftBench {
    /// With what `change` says otherwise.
    pub fn new(width: AddressWidth, change: fn(&mut UnitConfig)) -> Self {
        let mut config = config(width);
        change(&mut config);
        let config_of_host = HostConfig::default()
            .frames((MEMORY >> GRANULE_LG2) as usize)
            .slots(2);
        let host = Host::new(config_of_host).with_heap(ByteCount(16 << 20));
        let host = Arc::new(host.expect("an arena for the heap"));
        refill(&host);
        let unit = Self::unit(&host, &config);
        SoftBench {
            host,
            unit,
            width,
            config,
        }
    }
    /// The unit says where to; this is what a device then does, seen as on the other bench.
    fn moved(&self, page: PhysPage, at: Iova, kind: AccessKind) -> Reach {
        let word = (at.offset() / 8) as usize;
        let held = self.host.word(BY, page, word);
        match (kind, held.map(|held| held.load(Ordering::Acquire))) {
            (_, None) | (AccessKind::Read, Some(0)) => Reach::Blocked,
            (AccessKind::Read, Some(value)) => {
                filled(value, word).map_or(Reach::Strange(value), Reach::Page)
            }
            (AccessKind::Write, Some(_)) if TARGETS.contains(&page) => Reach::Page(page),
            (AccessKind::Write, Some(_)) => Reach::Blocked,
        }
    }
    fn unit(host: &Arc<Host>, config: &UnitConfig) -> Arc<Soft> {
        Arc::new(Soft::new(host.clone(), config).expect("a configuration that fits"))
    }
}

/// Where the unit does its work later, it takes a step whenever a caller that waits
/// looks at a status.
struct Stepping(Arc<Soft>);

// SAFETY: the software unit's.
unsafe impl Registers for Stepping {
    fn table_entries_lg2(&self) -> u32 {
        self.0.table_entries_lg2()
    }
    fn read32(&self, register: Reg32) -> u32 {
        self.0.service();
        self.0.read32(register)
    }
    fn read64(&self, register: Reg64) -> u64 {
        self.0.read64(register)
    }
    fn write32(&self, register: Reg32, value: u32) {
        self.0.write32(register, value);
    }
    fn write64(&self, register: Reg64, value: u64) {
        self.0.write64(register, value);
    }
}

impl Bench for SoftBench {
    fn which(&self) -> Which {
        Which::Software
    }
    fn width(&self) -> AddressWidth {
        self.width
    }
    fn host(&self) -> &Arc<Host> {
        &self.host
    }
    fn registers(&self) -> Arc<dyn Registers> {
        Arc::new(Stepping(self.unit.clone()))
    }
    fn devices(&self) -> usize {
        DEVICES.len()
    }
    fn access(&mut self, source: SourceId, at: Iova, kind: AccessKind) -> Reach {
        match self.unit.access(source, at.page(), kind).outcome {
            Outcome::Translated { page, .. } | Outcome::PassedThrough { page, .. } => {
                self.moved(page, at, kind)
            }
            Outcome::Fault(_) => Reach::Blocked,
        }
    }
    fn reset(&mut self) {
        self.unit = Self::unit(&self.host, &self.config);
    }
    fn soft(&self) -> Option<Arc<Soft>> {
        Some(self.unit.clone())
    }
    fn trouble(&self) -> Option<String> {
        None
    }
}
