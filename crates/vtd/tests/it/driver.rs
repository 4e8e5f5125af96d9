// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A unit's life: bring-up step by step, devices, ids, shutdown, and each way in which a step
//! fails.

use crate::common::{rig::*, *};
use ioatlas_dma::invalidation::{Invalidate, InvalidateError, Scope};
use ioatlas_dma::table::{
    Format, TableConfig, TableShape,
    fmt::{Toy, VtdSecond48, VtdSecond57},
};
use ioatlas_dma::translator::{AttachError, Paged, PagedError, RemappingUnit};
use ioatlas_dma::units::*;
use ioatlas_vtd::driver::*;
use std::sync::Arc;

const TIMED_OUT: InvalidateError = InvalidateError::TimedOut { turns: LIMIT.0 };

fn up() -> (Arc<Memory>, Arc<Fake>, Driver) {
    up_with(|_| {})
}

/// Without the wait descriptors.
fn invalidations(fake: &Fake) -> Vec<(u64, u64)> {
    let mut taken = fake.taken();
    taken.retain(|d| d.0 & 0xf != 5);
    taken
}

#[test]
fn bring_up_goes_one_step_at_a_time_and_empties_the_caches_first() {
    let host = host(3);
    let fake = Fake::new(&host);
    // interrupt remapping is on, with its compatibility format; an old error is pending
    fake.state().gsts = 0x0280_0000;
    fake.state().fsts = 0x70;
    let unit = bring_up(&host, &fake).unwrap();
    let state = fake.state();
    let commands = [
        QIE | 0x0280_0000,
        SRTP | QIE | 0x0280_0000,
        TE | QIE | 0x0280_0000,
    ];
    assert_eq!(state.commands, commands);
    assert_eq!(state.gsts, TE | QIE | SRTP | 0x0280_0000);
    assert_eq!(state.fsts, 0, "the old error is cleared");
    assert_eq!(state.rtaddr & 0xfff, 0, "legacy mode");
    // global context cache, then global IOTLB with both drains, then the wait
    let kinds: Vec<_> = state.taken.iter().map(|d| d.0 & 0xffff_ffff).collect();
    assert_eq!(kinds, [0x11, 0xd2, 0x25]);
    assert_eq!(host.frames_in_use(), 3);
    assert_eq!(unit.capabilities().cap(), QEMU_CAP);
}

#[test]
fn a_unit_that_cannot_be_served_is_refused_before_anything_is_taken() {
    type Case = (u64, u64, u32, fn(u64, u64, u32) -> BringUpError);
    let cases: [Case; 7] = [
        (u64::MAX, u64::MAX, 0, |cap, _, _| BringUpError::Absent {
            cap,
        }),
        (0, 0, 0, |cap, _, _| BringUpError::Absent { cap }),
        (QEMU_CAP, 0x40, 0, |_, ecap, _| {
            BringUpError::NoInvalidation { ecap }
        }),
        (QEMU_CAP & !0x1f00, QEMU_ECAP, 0, |cap, _, _| {
            BringUpError::NoWidth { cap }
        }),
        (QEMU_CAP | 7, QEMU_ECAP, 0, |cap, _, _| {
            BringUpError::DomainIds { cap }
        }),
        (QEMU_CAP, QEMU_ECAP, TE, |_, _, status| BringUpError::Live {
            status,
        }),
        (QEMU_CAP, QEMU_ECAP, QIE, |_, _, status| {
            BringUpError::Live { status }
        }),
    ];
    for (cap, ecap, gsts, error) in cases {
        let host = host(3);
        let fake = Fake::new(&host);
        (fake.state().cap, fake.state().ecap) = (cap, ecap);
        fake.state().gsts = gsts;
        assert_eq!(bring_up(&host, &fake).err(), Some(error(cap, ecap, gsts)));
        assert_eq!(host.frames_in_use(), 0);
        assert_eq!(fake.state().commands, []);
    }
}

#[test]
fn too_few_frames_are_given_back() {
    for frames in 0..3 {
        let host = host(frames);
        let fake = Fake::new(&host);
        assert_eq!(bring_up(&host, &fake).err(), Some(BringUpError::NoFrame));
        assert_eq!(host.frames_in_use(), 0, "of {frames}");
        assert_eq!(fake.state().commands, []);
    }
}

#[test]
fn a_unit_that_ignores_a_command_is_an_error_that_names_it() {
    for (bit, command) in [
        (SRTP, Command::SetRootTable),
        (QIE, Command::EnableQueue),
        (TE, Command::EnableTranslation),
    ] {
        let host = host(3);
        let fake = Fake::new(&host);
        fake.state().deaf = bit;
        let error = bring_up(&host, &fake).err();
        let status = fake.state().gsts;
        let stuck = Stuck {
            command,
            status,
            limit: LIMIT,
        };
        assert_eq!(error, Some(BringUpError::Stuck(stuck)));
        assert_eq!(status & TE, 0, "never translating with stale caches");
    }
}

#[test]
fn a_unit_that_never_completes_does_not_get_to_translate() {
    let host = host(3);
    let fake = Fake::new(&host);
    fake.state().mute = true;
    let error = BringUpError::Invalidate(TIMED_OUT);
    assert_eq!(bring_up(&host, &fake).err(), Some(error));
    assert_eq!(fake.state().gsts & TE, 0);
}

#[test]
fn attaching_writes_the_context_entry_and_flushes_nothing() {
    let (host, fake, unit) = up();
    assert_eq!(fake.context(0x20), None);
    unit.attach(BY, &*host, NIC, DomainId(5), ROOT, 4).unwrap();
    unit.attach(BY, &*host, DISK, DomainId(6), ROOT, 3).unwrap();
    assert_eq!(host.frames_in_use(), 4, "one context table for the bus");
    unit.attach(BY, &*host, FAR, DomainId(0x8001), ROOT, 4)
        .unwrap();
    assert_eq!(host.frames_in_use(), 5);
    assert_eq!(fake.context(0x20), Some((0x123_4001, 0x502)));
    assert_eq!(fake.context(0x28), Some((0x123_4001, 0x601)));
    assert_eq!(fake.context(0x200), Some((0x123_4001, 0x80_0102)));
    assert_eq!(fake.context(0x21), Some((0, 0)), "the neighbour is absent");
    assert_eq!(fake.taken(), []);
}

#[test]
fn detaching_clears_the_entry_and_flushes_context_before_iotlb() {
    let (host, fake, unit) = up();
    unit.attach(BY, &*host, NIC, DomainId(5), ROOT, 4).unwrap();
    let seen = fake.context(0x20);
    let told = "P14: memory says so, not only a CPU's cache";
    assert_eq!(seen, Some((0x123_4001, 0x502)), "{told}");
    unit.detach(BY, &*host, NIC, DomainId(5)).unwrap();
    let seen = fake.context(0x20);
    assert_eq!(
        seen,
        Some((0, 0)),
        "P8: memory says so, not only a CPU's cache"
    );
    // device-selective, source id 0x20, domain 5; then domain-selective with both drains
    assert_eq!(invalidations(&fake), [(0x20_0005_0031, 0), (0x5_00e2, 0)]);
    unit.attach(BY, &*host, NIC, DomainId(6), ROOT, 4).unwrap();
    assert_eq!(fake.context(0x20), Some((0x123_4001, 0x602)));
}

#[test]
fn a_device_has_one_domain_at_a_time_and_leaves_only_that_one() {
    let (host, fake, unit) = up();
    let (device, domain) = (NIC, DomainId(5));
    let not_there = Err(AttachError::NotAttached { device, domain });
    assert_eq!(
        unit.detach(BY, &*host, NIC, domain),
        not_there,
        "no table yet"
    );
    unit.attach(BY, &*host, DISK, domain, ROOT, 4).unwrap();
    assert_eq!(unit.detach(BY, &*host, NIC, domain), not_there);
    unit.attach(BY, &*host, NIC, domain, ROOT, 4).unwrap();
    let taken = Err(AttachError::Attached { device, domain });
    for id in [domain, DomainId(6)] {
        assert_eq!(unit.attach(BY, &*host, NIC, id, ROOT, 4), taken);
    }
    let domain = DomainId(6);
    let other = Err(AttachError::NotAttached { device, domain });
    assert_eq!(unit.detach(BY, &*host, NIC, domain), other);
    assert_eq!(fake.context(0x20), Some((0x123_4001, 0x502)));
    assert_eq!(fake.taken(), [], "nothing was flushed");
}

#[test]
fn tables_of_a_depth_that_the_unit_lacks_are_refused() {
    let attach = |cap, levels| {
        let host = host(16);
        let fake = Fake::new(&host);
        fake.state().cap = cap;
        let unit = bring_up(&host, &fake).unwrap();
        unit.attach(BY, &*host, NIC, DomainId(1), ROOT, levels)
    };
    for levels in [0, 1, 2, 5, 6, u32::MAX] {
        let error = AttachError::Levels { levels };
        assert_eq!(attach(QEMU_CAP, levels), Err(error));
    }
    // QEMU with 39-bit IOVAs: only three levels, and MGAW 39
    let narrow = 0x00d2_008c_2226_0206;
    assert_eq!(attach(narrow, 3), Ok(()));
    let error = Err(AttachError::Levels { levels: 4 });
    assert_eq!(attach(narrow, 4), error);
    assert_eq!(
        attach(narrow | 0x400, 4),
        error,
        "SAGAW alone is too little"
    );
}

/// A device that was attached to them would be translated by what is no entry, or another's.
#[test]
fn tables_that_the_unit_takes_for_others_are_not_made_under_it() {
    let host = host(16);
    let fake = Fake::new(&host);
    fake.state().cap = QEMU_CAP;
    let unit = Arc::new(bring_up(&host, &fake).unwrap());
    fn made<F: Format>(host: &Arc<Memory>, unit: &Arc<Driver>) -> Result<(), PagedError> {
        let frames = host.frames_in_use();
        let tables = Paged::<_, F, _>::new(host, unit.clone(), TableConfig::default());
        let refused = tables.map(drop);
        if refused.is_err() {
            assert_eq!(host.frames_in_use(), frames);
        }
        refused
    }
    assert_eq!(made::<VtdSecond48>(&host, &unit), Ok(()));
    let refused = |shape| Err(PagedError::Shape(shape));
    // the right levels and bits, other entries
    let few = TableShape::of::<Toy<1, 4>>();
    assert_eq!(
        made::<Toy<1, 4>>(&host, &unit),
        refused(few),
        "P14: few entries"
    );
    let deep = TableShape::of::<VtdSecond57>();
    assert_eq!(
        made::<VtdSecond57>(&host, &unit),
        refused(deep),
        "P14: many levels"
    );
    assert_eq!(
        PagedError::Shape(few).to_string(),
        "the unit does not walk VT-d second-stage tables of 4 levels with 2 entries each"
    );
    let other = TableShape {
        layout: "another unit's",
        ..TableShape::of::<VtdSecond48>()
    };
    assert!(!unit.walks(other), "P14: other bits");
}

#[test]
fn without_a_frame_for_the_context_table_nothing_changes() {
    let host = host(4);
    let fake = Fake::new(&host);
    let unit = bring_up(&host, &fake).unwrap();
    unit.attach(BY, &*host, NIC, DomainId(5), ROOT, 4).unwrap();
    let far = unit.attach(BY, &*host, FAR, DomainId(5), ROOT, 4);
    assert_eq!(far, Err(AttachError::NoFrame { bus: 2 }));
    assert_eq!(fake.context(0x200), None);
    unit.attach(BY, &*host, DISK, DomainId(5), ROOT, 4).unwrap();
}

#[test]
fn under_caching_mode_attaching_flushes_the_absent_entry() {
    let host = host(16);
    let fake = Fake::new(&host);
    fake.state().cap |= 0x80;
    let unit = bring_up(&host, &fake).unwrap();
    fake.taken();
    unit.attach(BY, &*host, NIC, DomainId(5), ROOT, 4).unwrap();
    // absent entries are cached with domain id 0
    assert_eq!(invalidations(&fake), [(0x20_0000_0031, 0), (0x5_00e2, 0)]);
    fake.state().mute = true;
    let cause = TIMED_OUT;
    let device = DISK;
    let error = AttachError::Invalidate { device, cause };
    let failed = unit.attach(BY, &*host, DISK, DomainId(5), ROOT, 4);
    assert_eq!(failed, Err(error));
    assert_eq!(fake.context(0x28).unwrap().0, 0, "blocked");
}

#[test]
fn a_device_whose_flush_failed_is_blocked_until_a_detach_succeeds() {
    let (host, fake, unit) = up();
    unit.attach(BY, &*host, NIC, DomainId(5), ROOT, 4).unwrap();
    fake.state().mute = true;
    let (device, domain, cause) = (NIC, DomainId(5), TIMED_OUT);
    let failed = unit.detach(BY, &*host, NIC, domain);
    let error = Err(AttachError::Invalidate { device, cause });
    assert_eq!(failed, error, "P1: caches may serve the device still");
    // domain and width stay readable beside the mark, in a bit that hardware ignores
    assert_eq!(fake.context(0x20), Some((0, 0x50a)));
    fake.state().mute = false;
    let taken = AttachError::Attached { device, domain };
    assert_eq!(
        unit.attach(BY, &*host, NIC, DomainId(6), ROOT, 4),
        Err(taken)
    );
    assert_eq!(unit.detach(BY, &*host, NIC, domain), Ok(()));
    let gone = AttachError::NotAttached { device, domain };
    assert_eq!(unit.detach(BY, &*host, NIC, domain), Err(gone));
    unit.attach(BY, &*host, NIC, DomainId(6), ROOT, 4).unwrap();
}

#[test]
fn of_many_cpus_that_attach_one_device_one_wins_and_no_table_leaks() {
    for _ in 0..50 {
        let (host, fake, unit) = up();
        let wins: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..5)
                .map(|id| {
                    let (host, unit) = (&host, &unit);
                    scope.spawn(move || unit.attach(BY, &**host, NIC, DomainId(id), ROOT, 4))
                })
                .collect();
            let results = threads.into_iter().map(|t| t.join().unwrap());
            results.filter(|r| r.is_ok()).count()
        });
        assert_eq!(wins, 1);
        assert_eq!(host.frames_in_use(), 4, "three, and one context table");
        assert_eq!(fake.context(0x20).unwrap().0, 0x123_4001);
    }
}

#[test]
fn a_context_table_allocated_in_vain_is_given_back() {
    let (host, fake, unit) = up();
    let unit = Arc::new(unit);
    let other = (host.clone(), unit.clone());
    host.during_next_alloc(move || {
        let (host, unit) = other;
        unit.attach(BY, &*host, DISK, DomainId(6), ROOT, 4).unwrap();
    });
    unit.attach(BY, &*host, NIC, DomainId(5), ROOT, 4).unwrap();
    assert_eq!(host.frames_in_use(), 4, "three, and one context table");
    assert_eq!(fake.context(0x28), Some((0x123_4001, 0x602)));
    assert_eq!(fake.context(0x20), Some((0x123_4001, 0x502)));
}

#[test]
fn an_invalidation_is_planned_queued_and_done() {
    let (_host, fake, unit) = up();
    fake.state().credit = 0;
    let range = IovaRange::new(IovaPage(0x12), PageCount(3));
    let leaves = unit.submit(DomainId(9), Scope::leaves(range)).unwrap();
    let tables = unit.submit(DomainId(9), Scope::tables(range)).unwrap();
    fake.step(2);
    assert_eq!(unit.done(leaves), Ok(true));
    assert_eq!(unit.done(tables), Ok(false));
    fake.step(2);
    assert_eq!(unit.done(tables), Ok(true));
    // pages 0x12..0x15 lie in the aligned block of 8 from 0x10
    let page = |hint: u64| (0x9_00f2, 0x1_0003 | hint);
    assert_eq!(invalidations(&fake), [page(0x40), page(0)]);
}

#[test]
fn a_small_units_ids_run_out_and_come_back() {
    let host = host(3);
    let fake = Fake::new(&host);
    fake.state().cap &= !7;
    let unit = bring_up(&host, &fake).unwrap();
    let all: Vec<_> = std::iter::from_fn(|| unit.domain_id(&host)).collect();
    assert_eq!(all, (1..16).map(DomainId).collect::<Vec<_>>());
    unit.release_domain_id(BY, &host, DomainId(9));
    assert_eq!(unit.domain_id(&host), Some(DomainId(9)));
    assert_eq!(unit.domain_id(&host), None);
}

#[test]
fn shutting_down_flushes_everything_and_gives_every_frame_back() {
    let (host, fake, unit) = up();
    unit.attach(BY, &*host, NIC, DomainId(5), ROOT, 4).unwrap();
    unit.attach(BY, &*host, FAR, DomainId(5), ROOT, 4).unwrap();
    unit.detach(BY, &*host, FAR, DomainId(5)).unwrap();
    let (error, unit) = shut_down(unit).unwrap_err();
    assert_eq!(error, ShutDownError::Attached { devices: 1 });
    assert_eq!(fake.state().gsts & TE, TE, "nothing was done");
    let unit = unit.unwrap();
    unit.detach(BY, &*host, NIC, DomainId(5)).unwrap();
    fake.taken();
    fake.state().commands.clear();
    shut_down(*unit).unwrap();
    assert_eq!(host.frames_in_use(), 0);
    assert_eq!(invalidations(&fake), [(0x11, 0), (0xd2, 0)]);
    assert_eq!(fake.state().commands, [QIE, 0], "translation, then queue");
    assert_eq!(fake.state().gsts, SRTP);
}

#[test]
fn a_unit_that_fails_while_it_is_shut_down_keeps_its_frames() {
    let lost_to = |break_it: fn(&Fake)| {
        let (host, fake, unit) = up();
        break_it(&fake);
        let (error, unit) = shut_down(unit).unwrap_err();
        assert!(unit.is_none());
        assert_eq!(host.frames_in_use(), 3, "{error}");
        error
    };
    let limit = LIMIT;
    let cause = Stuck {
        command: Command::DisableTranslation,
        status: TE | QIE | SRTP,
        limit,
    };
    let stuck = ShutDownError::Stuck { cause, lost: 3 };
    assert_eq!(lost_to(|fake| fake.state().deaf = TE), stuck);
    let silent = ShutDownError::Invalidate {
        cause: TIMED_OUT,
        lost: 3,
    };
    assert_eq!(lost_to(|fake| fake.state().mute = true), silent);
}

#[test]
fn a_queue_that_cannot_be_disabled_keeps_its_two_frames() {
    let (host, fake, unit) = up();
    fake.state().deaf = QIE;
    let (error, _) = shut_down(unit).unwrap_err();
    let cause = TIMED_OUT;
    assert_eq!(error, ShutDownError::Invalidate { cause, lost: 2 });
    assert_eq!(host.frames_in_use(), 2, "the root table came back");
}

#[test]
fn messages_name_the_numbers() {
    let stuck = Stuck {
        command: Command::EnableQueue,
        status: 0x4000_0000,
        limit: LIMIT,
    };
    assert_eq!(
        BringUpError::Stuck(stuck).to_string(),
        "the unit did not enable the invalidation queue in 50 turns of waiting (global status 0x40000000)"
    );
    let error = ShutDownError::Stuck {
        cause: stuck,
        lost: 3,
    };
    assert!(error.to_string().ends_with("; 3 frames are lost"));
}
