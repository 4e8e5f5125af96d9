// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! An invalidation fails, or never completes: what it should have freed is never used again, it is
//! counted, and said.

use crate::suite::rig::*;
use ioatlas_dma::{domain::*, platform::Platform, table::Format, translator::*, units::*};
use ioatlas_viommu::{
    config::Processing,
    machine::{MachineError, SoftDomainError, StillInUse},
    oracle::{Failing, Oracle},
    unit::Injection,
};
use ioatlas_vtd::driver::{BringUpError, ShutDownError};
use std::collections::BTreeSet;

on_every_machine! {
    quarantine::a_queue_error_quarantines_what_unmap_retired,
    quarantine::quarantined_pages_and_frames_are_never_had_again,
    quarantine::an_access_that_never_ends_times_the_unmap_out,
    quarantine::a_full_batch_that_fails_is_quarantined_whole,
    quarantine::a_tick_reports_the_failure,
    quarantine::an_undo_that_cannot_flush_quarantines,
    quarantine::a_drain_for_an_iova_that_fails_is_reported,
    quarantine::a_domain_that_cannot_flush_leaks_its_tables,
    quarantine::the_id_of_a_domain_that_could_not_flush_is_not_given_again,
    quarantine::a_domain_that_cannot_detach_blocks_every_device,
    quarantine::a_dead_unit_is_not_brought_up,
}

/// The unit refuses the next descriptor; nothing works any more after that.
fn break_queue<B: Base>(rig: &Rig<B>) {
    rig.machine
        .machine()
        .unit()
        .inject(Injection::QueueErrors(u32::MAX));
}

/// Unmaps, and flushes under a deferred policy; what failed.
fn unmap<B: Base, F: Format>(domain: &Dom<B, F>, mapping: Mapping) -> InvalidateError {
    let range = mapping.range();
    match domain.unmap(mapping) {
        Ok(()) => domain.domain().flush().expect_err("the unit is broken"),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(&range.to_string()), "{text}");
            let UnmapError::Invalidate { range: of, cause } = error else {
                panic!("{text}")
            };
            assert_eq!(of, range);
            assert!(text.contains("quarantined"), "{text}");
            cause
        }
    }
}

fn quarantined<B: Base, F: Format>(domain: &Dom<B, F>) -> (u64, u64) {
    let audit = domain.domain().audit().expect("all is accounted for");
    let held = audit.stats.quarantined;
    (held.pages.0, held.frames)
}

/// Ends a domain that cannot be closed, and the unit that cannot be shut down; nothing was freed.
fn abandon<B: Base, F: Format>(rig: Rig<B>, domain: Dom<B, F>) {
    rig.assert_clean();
    let frames = rig.frames_in_use();
    let error = domain.close(&[]).expect_err("the unit is broken");
    assert!(
        matches!(error, CloseError::Attach(AttachError::Invalidate { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("out of service"), "{error}");
    assert_eq!(rig.frames_in_use(), frames, "leaked, not freed");
    let ended = rig.machine.into_machine().shut_down();
    let Err(StillInUse::Driver(error)) = ended else {
        panic!("the device's context entry may be cached still")
    };
    assert_eq!(error, ShutDownError::Attached { devices: 1 });
    assert!(error.to_string().contains('1'), "{error}");
}

pub fn a_queue_error_quarantines_what_unmap_retired<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let three = domain.map(buffer(0x10, 3), Direction::ToDevice).unwrap();
        let one = domain.map(buffer(0x20, 1), Direction::ToDevice).unwrap();
        break_queue(&rig);
        let cause = unmap(&domain, three);
        assert!(
            matches!(cause, InvalidateError::QueueError { .. }),
            "{cause}"
        );
        assert!(cause.to_string().contains("descriptor"), "{cause}");
        assert_eq!(quarantined(&domain), (4, 0), "3 rounded up");
        let cause = unmap(&domain, one);
        assert_eq!(cause, InvalidateError::OutOfService);
        assert_eq!(quarantined(&domain), (5, 0));
        let stats = domain.domain().stats();
        assert_eq!((stats.live, stats.retired), Default::default());
        abandon(rig, domain);
    }
}

pub fn quarantined_pages_and_frames_are_never_had_again<B: Base, F: Format>() {
    for design in designs() {
        let span = span::<F>();
        // the size of four leaf tables
        let aperture = IovaRange::new(IovaPage(4 * span), PageCount(4 * span));
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design.aperture(aperture));
        let table = domain.map(buffer(0x1000, span), Direction::ToDevice);
        let table = table.unwrap();
        let memory = domain.alloc_consistent(ByteCount(2 * GRANULE)).unwrap();
        let lost_pages: BTreeSet<u64> = table
            .range()
            .iter()
            .chain(IovaRange::new(memory.iova().page(), PageCount(2)).iter())
            .map(|page| page.0)
            .collect();
        let lost_frames: BTreeSet<u64> = memory.frames().iter().map(|f| f.page().0).collect();
        break_queue(&rig);
        unmap(&domain, table);
        assert_eq!(quarantined(&domain), (span, 1), "its leaf table with it");
        let freed = domain.free_consistent(memory);
        if is_batched(&design) {
            freed.unwrap();
            assert!(domain.domain().flush().is_err());
        } else {
            assert!(matches!(freed, Err(UnmapError::Invalidate { .. })));
        }
        assert_eq!(quarantined(&domain), (span + 2, 3));

        // every page of the aperture that can be had
        let mut had = BTreeSet::new();
        while let Ok(mapping) = domain.map(buffer(0x9000, 1), Direction::ToDevice) {
            assert!(had.insert(mapping.range().first.0), "handed out twice");
        }
        let left = match afterwards(&design) {
            Afterwards::Kept => 0, // no map succeeds where none can flush
            _ => aperture.pages.0 - lost_pages.len() as u64,
        };
        assert_eq!(had.len() as u64, left);
        assert!(had.is_disjoint(&lost_pages));
        // every frame that can be had
        let platform = rig.machine.machine().platform().clone();
        let mut frames = Vec::new();
        while let Some(frame) = platform.frame_alloc() {
            assert!(!lost_frames.contains(&frame.page().0));
            frames.push(frame);
        }
        frames
            .into_iter()
            .for_each(|f| platform.frame_free(crate::BY, f));
        abandon(rig, domain);
    }
}

pub fn an_access_that_never_ends_times_the_unmap_out<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let mapping = domain.map(buffer(0x10, 1), Direction::ToDevice).unwrap();
        let (at, unit) = (mapping.iova().page(), rig.machine.machine().unit().clone());
        let hangs = unit.begin(NIC, at, AccessKind::Read);
        let cause = unmap(&domain, mapping);
        let turns = LIMIT.0;
        assert_eq!(cause, InvalidateError::TimedOut { turns });
        assert!(cause.to_string().contains(&turns.to_string()), "{cause}");
        assert_eq!(quarantined(&domain), (1, 0));
        // it ends after all, late; the unit goes on, and what is quarantined stays so
        drop(hangs);
        assert_eq!(rig.access(at, AccessKind::Read), None);
        for round in 0..20 {
            let next = domain.map(buffer(0x20, 1), Direction::ToDevice).unwrap();
            assert_ne!(next.iova().page(), at, "round {round}");
            domain.unmap(next).unwrap();
        }
        assert_eq!(quarantined(&domain), (1, 0));
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn a_full_batch_that_fails_is_quarantined_whole<B: Base, F: Format>() {
    for design in designs().into_iter().filter(is_batched) {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let mut live: Vec<_> = (0..7)
            .map(|i| {
                domain
                    .map(buffer(0x10 + i, 1), Direction::ToDevice)
                    .unwrap()
            })
            .collect();
        break_queue(&rig);
        for n in 1..5 {
            domain.unmap(live.remove(0)).unwrap();
            assert_eq!(domain.domain().stats().retired.pages, PageCount(n));
        }
        let fifth = live.remove(0);
        let range = fifth.range();
        let error = domain.unmap(fifth).unwrap_err();
        assert!(
            matches!(error, UnmapError::Invalidate { range: of, .. } if of == range),
            "{error}"
        );
        assert_eq!(
            quarantined(&domain),
            (5, 0),
            "the batch, not the last alone"
        );
        // the rest waits for the next batch
        live.into_iter().for_each(|m| domain.unmap(m).unwrap());
        let stats = domain.domain().stats();
        assert_eq!(stats.retired.pages, PageCount(2));
        assert_eq!(domain.domain().flush(), Err(InvalidateError::OutOfService));
        assert_eq!(quarantined(&domain), (7, 0));
        abandon(rig, domain);
    }
}

pub fn a_tick_reports_the_failure<B: Base, F: Format>() {
    for design in designs().into_iter().filter(is_batched) {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        for n in 0..2 {
            let mapping = domain.map(buffer(0x10 + n, 1), Direction::ToDevice);
            domain.unmap(mapping.unwrap()).unwrap();
        }
        break_queue(&rig);
        let error = domain.tick(TimeNs(1)).unwrap_err();
        assert!(
            matches!(error, InvalidateError::QueueError { .. }),
            "{error}"
        );
        assert_eq!(quarantined(&domain), (2, 0));
        // nothing is pending, so there is nothing to report
        let later = domain.tick(TimeNs(1_000_000_000));
        assert_eq!(later, Ok(TickReport::default()));
        abandon(rig, domain);
    }
}

pub fn an_undo_that_cannot_flush_quarantines<B: Base, F: Format>() {
    // a policy that flushes first has nothing to undo
    for design in designs()
        .into_iter()
        .filter(|d| afterwards(d) != Afterwards::Kept)
    {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let pages = 2 * span::<F>();
        // the tables of the first half are there; that of the second fails
        rig.failing().fail_nth(u64::from(F::LEVELS) - 1);
        break_queue(&rig);
        let error = domain
            .map(buffer(0x1000, pages), Direction::ToDevice)
            .unwrap_err();
        match error {
            MapError::Install(_) => {
                assert!(!is_strict(&design));
                assert!(domain.domain().flush().is_err());
            }
            MapError::Invalidate(_) => {
                assert!(!is_batched(&design));
                assert!(error.to_string().contains("quarantined"), "{error}");
            }
            other => panic!("{other}"),
        }
        assert_eq!(
            quarantined(&domain),
            (pages, 1),
            "the table was covered whole"
        );

        // the frames of consistent memory follow the pages that named them
        // (of its tables only the leaf table is missing)
        rig.failing().fail_nth(3);
        let failed = domain.alloc_consistent(ByteCount(3 * GRANULE));
        assert!(failed.is_err());
        let _ = domain.domain().flush();
        assert_eq!(quarantined(&domain), (pages + 4, 1 + 3));
        abandon(rig, domain);
    }
}

pub fn a_drain_for_an_iova_that_fails_is_reported<B: Base, F: Format>() {
    for design in designs().into_iter().filter(is_batched) {
        let aperture = Some(IovaRange::new(IovaPage(8), PageCount(2)));
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design.aperture(aperture));
        let both = domain.map(buffer(0x10, 2), Direction::ToDevice).unwrap();
        domain.unmap(both).unwrap();
        break_queue(&rig);
        let error = domain
            .map(buffer(0x20, 1), Direction::ToDevice)
            .unwrap_err();
        assert!(
            matches!(
                error,
                MapError::Invalidate(InvalidateError::QueueError { .. })
            ),
            "{error}"
        );
        assert_eq!(quarantined(&domain), (2, 0));
        let error = domain
            .map_at(Iova(0x8000), buffer(0x20, 1), Direction::ToDevice)
            .unwrap_err();
        assert!(matches!(error, MapError::NoReserve(_)), "{error}");
        abandon(rig, domain);
    }
}

pub fn a_domain_that_cannot_flush_leaks_its_tables<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        // no device: the last flush is the first thing that fails
        let domain = rig.machine.domain::<F>(design).unwrap();
        let kept = domain.map(buffer(0x10, 1), Direction::ToDevice).unwrap();
        break_queue(&rig);
        let frames = rig.frames_in_use();
        let error = domain.close(&[]).unwrap_err();
        assert!(
            matches!(
                error,
                CloseError::Invalidate(InvalidateError::QueueError { .. })
            ),
            "{error}"
        );
        assert_eq!(rig.frames_in_use(), frames);
        drop(kept);
        rig.assert_clean();
        let ended = rig.machine.into_machine().shut_down();
        let Err(StillInUse::Driver(error)) = ended else {
            panic!("the caches cannot be emptied")
        };
        let cause = InvalidateError::OutOfService;
        // the root table, the queue and the status word
        assert_eq!(error, ShutDownError::Invalidate { cause, lost: 3 });
    }
}

/// Every id that there is, and where a device of its domain gets to; all of them are closed again.
fn take_ids<B: Base, F: Format>(rig: &Rig<B>, design: DomainConfig) -> BTreeSet<u16> {
    let mut taken = Vec::new();
    loop {
        match rig.machine.domain::<F>(design) {
            Ok(domain) => taken.push(domain),
            Err(SoftDomainError::Tables(PagedError::NoDomainId)) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let ids: Vec<_> = taken.iter().map(|domain| domain.domain().id().0).collect();
    for (domain, to) in taken.into_iter().zip(0x4000..) {
        domain.attach(DISK).expect("attached");
        let at = Iova(0x5000);
        let mapping = domain.map_at(at, buffer(to, 1), Direction::ToDevice);
        let mapping = mapping.expect("free");
        let reached = rig.access_by(DISK, at.page(), AccessKind::Read);
        assert_eq!(reached, Some(PhysPage(to)), "P8");
        domain.unmap(mapping).expect("unmapped");
        rig.close(domain, &[DISK]);
    }
    let all: BTreeSet<_> = ids.iter().copied().collect();
    assert_eq!(all.len(), ids.len(), "an id was given twice");
    all
}

pub fn the_id_of_a_domain_that_could_not_flush_is_not_given_again<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::with::<F>(512, |config| config.features.nd = 0);
        let other = rig.domain::<F>(design);
        let before = take_ids::<B, F>(&rig, design);
        // a device of it caches translations under its id, and is detached
        let domain = rig.machine.domain::<F>(design).expect("an id");
        let id = domain.domain().id().0;
        domain.attach(DISK).expect("attached");
        let at = Iova(0x5000);
        let kept = domain.map_at(at, buffer(0x3000, 1), Direction::ToDevice);
        assert!(rig.access_by(DISK, at.page(), AccessKind::Read).is_some());
        domain.detach(DISK).expect("detached");
        // an access of which the unit does not know yet whose it is
        let unit = rig.machine.machine().unit().clone();
        let hangs = unit.begin(NIC, at.page(), AccessKind::Read);
        let error = domain
            .close(&[])
            .expect_err("its last flush waits for the access");
        assert!(
            matches!(
                error,
                CloseError::Invalidate(InvalidateError::TimedOut { .. })
            ),
            "{error}"
        );
        drop((hangs, kept));
        let after = take_ids::<B, F>(&rig, design);
        assert!(
            before.contains(&id) && !after.contains(&id),
            "it was reused"
        );
        assert_eq!(after.len() + 1, before.len(), "no other is lost");
        rig.close(other, &[NIC]);
    }
}

pub fn a_domain_that_cannot_detach_blocks_every_device<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        // unwatched, since the oracle expects a device to be attached until detach has succeeded
        let domain = rig.machine.machine().domain::<F>(design).unwrap();
        domain.attach(NIC).unwrap();
        domain.attach(DISK).unwrap();
        let kept = domain.map(buffer(0x10, 1), Direction::ToDevice).unwrap();
        let at = kept.iova().page();
        break_queue(&rig);
        let error = domain.close().unwrap_err();
        let CloseError::Attach(AttachError::Invalidate { device, cause }) = error else {
            panic!("{error}")
        };
        assert_eq!(device, NIC, "the first failure");
        assert!(matches!(cause, InvalidateError::QueueError { .. }));
        // nothing of them was cached, so both are blocked now
        for source in [NIC, DISK] {
            assert_eq!(
                rig.access_by(source, at, AccessKind::Read),
                None,
                "{source}"
            );
        }
        rig.assert_clean();
    }
}

pub fn a_dead_unit_is_not_brought_up<B: Base, F: Format>() {
    let base = Failing::new(B::make(64));
    let machine = machine_on::<B, F>(base, Oracle::new(), |config| {
        config.processing = Processing::Stuck;
    });
    let Err(MachineError::BringUp(error)) = machine else {
        panic!("nothing empties the caches")
    };
    let turns = LIMIT.0;
    let cause = InvalidateError::TimedOut { turns };
    assert_eq!(error, BringUpError::Invalidate(cause));
    assert!(error.to_string().contains(&turns.to_string()), "{error}");
}
