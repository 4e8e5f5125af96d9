// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The unit under the real driver and the real tables: two decodings and two encodings of one
//! specification meet.

use crate::unit::rig::{DEVICE, target};
use ioatlas_dma::{
    invalidation::{FlushSequence, Scope, WaitLimit},
    iova::AllocKind,
    platform::{Authority, Platform},
    table::{
        Format, LeafAttrs, TableConfig,
        fmt::{Toy, VtdSecond48},
    },
    translator::{Paged, Translator},
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use ioatlas_viommu::{config::*, unit::SoftUnit};
use ioatlas_vtd::{driver, registers::Registers};
use std::sync::Arc;

const LIMIT: WaitLimit = WaitLimit(1 << 20);

/// From bringing up to shutting down; nothing may be left.
fn whole_life<F: Format>(change: impl FnOnce(&mut Features)) {
    whole_life_by::<F, _>(|config| change(&mut config.features), |soft| soft);
}

/// The same, with the driver's registers as `by` makes them of the unit.
pub fn whole_life_by<F: Format, R: Registers + 'static>(
    change: impl FnOnce(&mut UnitConfig),
    by: impl FnOnce(Arc<SoftUnit<Host, Host>>) -> R,
) {
    let host = Arc::new(Host::new(HostConfig::default().frames(64).slots(2)));
    let p = &*host;
    let mut config = UnitConfig::new(Geometry::of::<F>());
    change(&mut config);
    let soft = Arc::new(SoftUnit::new(host.clone(), &config).unwrap());
    let registers = by(soft.clone());
    let unit = driver::Unit::bring_up(host.clone(), registers, driver::Config::default());
    let unit = Arc::new(unit.unwrap());
    // SAFETY: of this unit and this table's id, by which all that is retired below is flushed.
    let sequence = unsafe { FlushSequence::new(p) };
    let mut paged = Paged::<Host, F, _>::new(&host, unit.clone(), TableConfig::default()).unwrap();
    // SAFETY: this table has no other user; what is cleared below is flushed before it is used
    // again.
    let ours = unsafe { Authority::assume() };
    let get = |page, kind| target(&soft.access(DEVICE, page, kind));
    let first = F::aperture().first;
    let range = IovaRange::new(IovaPage(first.0 + 1), PageCount(2));

    assert_eq!(get(range.first, AccessKind::Read), None, "not attached");
    paged.attach(ours, p, DEVICE).unwrap();
    let runs = [70, 80].map(|at| PhysRun::new(PhysPage(at), PageCount(1)));
    let kind = AllocKind::Dynamic;
    let leaf = LeafAttrs::new(Perm::Write, kind);
    paged
        .install(ours, p, range, runs.into_iter(), leaf)
        .unwrap();
    let second = IovaPage(range.first.0 + 1);
    assert_eq!(get(range.first, AccessKind::Write), Some(70));
    assert_eq!(get(second, AccessKind::Write), Some(80));
    assert_eq!(get(second, AccessKind::Read), None);

    let cleared = paged.clear(ours, p, range, kind, |_| {
        panic!("other pages share the table")
    });
    assert_eq!(cleared.gone, PageCount(2));
    let stale = get(range.first, AccessKind::Write);
    assert_eq!(stale, Some(70), "until the flush");
    let retired = sequence.retire(p, range, Scope::leaves(range));
    let done = sequence
        .flush(p, paged.unit(), paged.id(), Scope::leaves(range), LIMIT)
        .unwrap();
    assert!(retired.complete(&done).is_ok());
    for page in range.iter() {
        assert_eq!(get(page, AccessKind::Write), None);
    }

    paged.detach(ours, p, DEVICE).unwrap();
    let mut tables = Vec::new();
    paged.dismantle(ours, p, |frame| {
        tables.push(sequence.retire(p, frame, Scope::DOMAIN))
    });
    let done = sequence
        .flush(p, paged.unit(), paged.id(), Scope::DOMAIN, LIMIT)
        .unwrap();
    for table in tables {
        let flushed = table.complete(&done).unwrap();
        assert!(!soft.holds_pointer_to(flushed.get().page()));
        p.frame_free(crate::BY, flushed.into_fresh());
    }
    paged.retire_id(ours, p);
    drop(paged);
    let unit = Arc::into_inner(unit).unwrap();
    // SAFETY: there is no device, but for what this test does.
    let ended = unsafe { unit.shut_down() };
    ended.map_err(|(e, _)| e).unwrap();
    assert_eq!(host.frames_in_use(), 0);
    let stats = soft.stats();
    assert_eq!((stats.queue_errors, soft.in_flight()), (0, 0), "{stats:?}");
    soft.audit().unwrap();
}

#[test]
fn driver_and_unit_agree_on_vtd_tables() {
    whole_life::<VtdSecond48>(|_| {});
}

#[test]
fn driver_and_unit_agree_on_toy_tables() {
    whole_life::<Toy<2, 3>>(|_| {});
}

#[test]
fn they_agree_on_lesser_capabilities() {
    whole_life::<VtdSecond48>(|f| f.page_selective = None);
    whole_life::<VtdSecond48>(|f| f.page_selective = Some(0));
    whole_life::<VtdSecond48>(|f| (f.nd, f.coherent) = (0, false));
    whole_life::<VtdSecond48>(|f| (f.drain_reads, f.drain_writes) = (false, false));
}
