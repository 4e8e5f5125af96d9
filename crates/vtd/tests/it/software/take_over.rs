// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The moment of a live take-over in which the root table is ours and the caches are not emptied
//! yet.

use super::rig::*;
use crate::common::BY;
use ioatlas_dma::{
    platform::Platform,
    translator::{PagedError, RemappingUnit},
    units::*,
};
use ioatlas_host::Host;
use ioatlas_viommu::{config::*, observe::Outcome};
use ioatlas_vtd::{
    acpi::find::Unreadable,
    driver::{Config, FirmwareIdsError, Live, Unit},
    registers::*,
};
use std::sync::{Arc, Mutex};

const TAKE_OVER: Config = HOST.live(Live::TakeOver);
const SRTP: u32 = 1 << 30;

/// A unit whose devices access a page each time a root table was set, before anything else is done.
struct Watched {
    unit: Stepping,
    page: IovaPage,
    seen: Arc<Mutex<Vec<(SourceId, Outcome)>>>,
}

// SAFETY: the software unit's; accesses of devices come in between.
unsafe impl Registers for Watched {
    fn table_entries_lg2(&self) -> u32 {
        self.unit.table_entries_lg2()
    }
    fn read32(&self, register: Reg32) -> u32 {
        self.unit.read32(register)
    }
    fn read64(&self, register: Reg64) -> u64 {
        self.unit.read64(register)
    }
    fn write32(&self, register: Reg32, value: u32) {
        self.unit.write32(register, value);
        if register == GCMD && value & SRTP != 0 {
            for device in [NIC, DISK] {
                let access = self.unit.0.access(device, self.page, AccessKind::Read);
                self.seen.lock().unwrap().push((device, access.outcome));
            }
        }
    }
    fn write64(&self, register: Reg64, value: u64) {
        self.unit.write64(register, value);
    }
}

/// Firmware translates for DISK and has the translation cached; ours are attached to NIC, with
/// nothing mapped there, before the root table is. What NIC reaches in between, it reaches by
/// firmware's entries under the id of its own domain.
#[test]
fn no_device_of_ours_is_served_under_an_id_of_firmware() {
    for root_pointer in [RootPointer::Latches, RootPointer::LatchesAndFlushes] {
        let firmware = Rig::new(|c| c.registers.root_pointer = root_pointer);
        let (host, soft) = (firmware.host.clone(), firmware.soft.clone());
        let theirs = firmware.domain();
        theirs.attach(DISK).unwrap();
        let screen = theirs
            .map(PhysRange::page(OLD), Direction::ToDevice)
            .unwrap();
        let at = screen.iova();
        assert_eq!(firmware.reach(DISK, at), Some(OLD), "and it is cached");

        let seen = Arc::new(Mutex::new(Vec::new()));
        let watched = Watched {
            unit: Stepping(soft.clone()),
            page: at.page(),
            seen: seen.clone(),
        };
        let unit = Unit::prepare(host.clone(), watched, TAKE_OVER).unwrap();
        unit.reserve_firmware_ids(&read(&host)).unwrap();
        // firmware's device goes on, and the unit caches it again
        assert_eq!(firmware.reach(DISK, at), Some(OLD));
        let id = unit.domain_id(&host).expect("there are others");
        let table = host_table(&host);
        unit.attach(BY, &*host, NIC, id, table, 4).unwrap();
        unit.activate().unwrap();
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        let of = |device| seen.iter().find(|(source, _)| *source == device).unwrap().1;
        let reached = of(NIC);
        assert!(
            matches!(reached, Outcome::Fault(_)),
            "P8: served from firmware's entries under id {id}: {reached:?}"
        );
        // firmware's are free again; where the root pointer flushes they were so all along
        let all: Vec<_> = std::iter::from_fn(|| unit.domain_id(&host)).collect();
        assert!(all.contains(&theirs.id()) || id == theirs.id());
        std::mem::forget((theirs, screen, firmware));
    }
}

/// An empty table.
fn host_table(host: &Host) -> PhysPage {
    host.frame_alloc().unwrap().publish().page()
}

#[test]
fn no_id_is_given_before_it_is_known_which_are_free() {
    let firmware = Rig::new(|_| {});
    let (host, soft) = (firmware.host.clone(), firmware.soft.clone());
    let theirs = firmware.domain();
    theirs.attach(DISK).unwrap();
    let unit = Unit::prepare(host.clone(), Stepping(soft.clone()), TAKE_OVER).unwrap();
    let unit = Arc::new(unit);
    let tables = Tables::new(&host, unit.clone(), Default::default());
    assert!(matches!(tables.err(), Some(PagedError::NoDomainId)));
    // no memory can be read; then the root table can, and no other
    let nothing = |_: PhysAddr, _: &mut [u8]| Err(Unreadable);
    let root = PhysAddr(soft.read64(RTADDR));
    let error = unit.reserve_firmware_ids(&nothing);
    assert_eq!(error, Err(FirmwareIdsError::Unreadable { table: root }));
    let root_alone = |at: PhysAddr, into: &mut [u8]| match at == root {
        true => read(&host)(at, into),
        false => Err(Unreadable),
    };
    let error = unit.reserve_firmware_ids(&root_alone).unwrap_err();
    let FirmwareIdsError::Unreadable { table } = error else {
        panic!("{error}")
    };
    assert_ne!(table, root);
    assert!(error.to_string().contains(&table.to_string()), "{error}");
    assert_eq!(unit.domain_id(&host), None, "P8: still unknown");
    unit.activate().unwrap();
    let all: Vec<_> = std::iter::from_fn(|| unit.domain_id(&host)).collect();
    assert!(all.contains(&theirs.id()), "once the caches are empty");
    assert_eq!(unit.reserve_firmware_ids(&nothing), Ok(()), "nothing to do");
    std::mem::forget((theirs, firmware));
}

/// Tables that are garbage, that contain themselves, or that use every id: read once each, and
/// believed in the ids alone.
#[test]
fn tables_that_lie_cost_ids_and_nothing_else() {
    let firmware = Rig::new(|_| {});
    let (host, soft) = (firmware.host.clone(), firmware.soft.clone());
    let lies: [fn(PhysAddr, &mut [u8]); 3] = [
        |_, into| into.fill(0xff),
        |_, into| into.fill(0),
        |_, into| {
            for (n, entry) in into.chunks_exact_mut(16).enumerate() {
                entry[0] = 1;
                entry[9..11].copy_from_slice(&(n as u16).to_le_bytes());
            }
        },
    ];
    let mut free = Vec::new();
    for lie in lies {
        let unit = Unit::prepare(host.clone(), Stepping(soft.clone()), TAKE_OVER).unwrap();
        let reads = Mutex::new(0);
        let memory = |at: PhysAddr, into: &mut [u8]| {
            *reads.lock().unwrap() += into.len();
            lie(at, into);
            Ok(())
        };
        unit.reserve_firmware_ids(&memory).unwrap();
        assert!(*reads.lock().unwrap() <= 257 * 4096, "a bounded read");
        free.push(std::iter::from_fn(|| unit.domain_id(&host)).count());
    }
    let ids = 1 << (4 + 2 * soft_nd(&soft));
    assert_eq!(free[1], ids - 1, "no context at all: all but 0");
    assert!(free[0] >= ids - 2, "one id, which may not even exist");
    assert_eq!(free[2], ids.saturating_sub(256), "0 to 255 are in use");
    std::mem::forget(firmware);
}

/// CAP.ND.
fn soft_nd(soft: &Soft) -> u32 {
    (soft.read64(CAP) & 7) as u32
}
