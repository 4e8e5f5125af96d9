// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Races that a caller may lose: for one mapping through the address API, for one device, for the
//! last domain id.
//!
//! Schedules and seeds are those of [`crate::suite::schedules`]; code that touches a frame after it
//! was freed fails there.

use crate::suite::{
    crowd::*,
    guarded::Guarded,
    rig::*,
    schedules::{self, Body, Cast, drawn, run, schedule, seeds, unit},
};
use ioatlas_dma::{
    domain::*,
    platform::*,
    translator::{AttachError, PagedError},
    units::*,
};
use ioatlas_sim::platform::{Schedule, inspect};
use ioatlas_viommu::config::Processing;
use std::cell::Cell;

type Racing = Crowd<Guarded, Small>;

/// One race of one seed under one design.
struct Race<'a> {
    seed: u64,
    design: DomainConfig,
    schedule: Schedule,
    context: &'a str,
}

impl Race<'_> {
    /// Both at once, and the unit.
    fn run<'a>(&self, crowd: &'a Racing, cpus: [Body<'a>; 2]) {
        let unit = crowd.rig.machine.machine().unit();
        unit.set_processing(Processing::Asynchronous);
        // one of the first loads of the CPU that acts, so that others overtake it there
        let until_slow = &crowd.rig.failing().inner().until_slow;
        inspect(|| until_slow.store(1 + self.seed / 8 % 24, Ordering::Relaxed));
        let agents = Vec::new();
        run(self.schedule, crowd, Cast { cpus, agents }, self.context);
        unit.set_processing(Processing::Inline);
    }
}

/// Races over all seeds, and the designs of each.
fn over_seeds(scenario: &str, race: impl Fn(Racing, &Race<'_>)) {
    for seed in seeds() {
        for design in drawn(seed, designs()) {
            let schedule = schedule(seed);
            let context = &*format!("{scenario}, {}, {schedule}", name(&design));
            let crowd = Racing::new(64, design, schedules::LIMIT, |u| {
                unit(seed, u);
                u.features.nd = 0;
            });
            let machine = crowd.rig.machine.machine();
            machine.unit().set_processing(Processing::Inline);
            let this = Race {
                seed,
                design,
                schedule,
                context,
            };
            race(crowd, &this);
        }
    }
}

const AT: IovaPage = IovaPage(20);
/// What is mapped there, now and again: the first entry is the same word each time.
const TO: u64 = 0x100;

fn map(c: &Racing, pages: u64) -> Option<(Iova, ByteCount)> {
    let domain = c.domain.domain();
    let mapping = domain.map_at(AT.addr(), buffer(TO, pages), Direction::ToDevice);
    let raw = domain.into_raw(c.taken(mapping)?);
    Some(raw.expect("of this domain"))
}

/// Whether it was ours; any error but that it is not is a bug.
fn unmap(c: &Racing, (iova, len): (Iova, ByteCount)) -> bool {
    match c.domain.domain().unmap_raw(iova, len) {
        Ok(()) => true,
        Err(UnmapError::NotAMapping { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// What the tables say of `pages` pages and the one after them.
fn mapped(c: &Racing, first: IovaPage, pages: u64) -> Vec<Option<u64>> {
    let (p, domain) = (c.rig.machine.machine().platform(), c.domain.domain());
    let table = domain.translator().table();
    let range = IovaRange::new(first, PageCount(pages + 1));
    let walk = |page| table.walk(p, page).map(|(to, _)| to.0);
    range.iter().map(walk).collect()
}

/// 1 and 3 pages of a leaf table, and all 4, so that it is detached while the loser reads it.
#[test]
fn of_two_raw_unmaps_of_one_mapping_one_wins() {
    let firsts = Cell::new([0u64; 2]);
    over_seeds("one mapping, two raw unmaps", |c, race| {
        for pages in [1, 3, 4] {
            let domain = c.domain.domain();
            let (iova, len) = if race.seed % 2 == 0 {
                map(&c, pages).expect("free")
            } else {
                let mapping = domain.map(buffer(TO, pages), Direction::ToDevice);
                let mapping = mapping.expect("there is room");
                domain.into_raw(mapping).expect("of this domain")
            };
            let won = [const { Cell::new(false) }; 2];
            let cpu = |n: usize| -> Body<'_> {
                let (c, won) = (&c, &won[n]);
                Box::new(move || won.set(unmap(c, (iova, len))))
            };
            race.run(&c, [cpu(0), cpu(1)]);
            let won = won.map(|won| won.get());
            assert_eq!(
                won.iter().filter(|won| **won).count(),
                1,
                "{}, {pages} pages: {won:?}",
                race.context
            );
            let mut all = firsts.get();
            all[usize::from(won[1])] += 1;
            firsts.set(all);
            let nothing = vec![None; pages as usize + 1];
            assert_eq!(mapped(&c, iova.page(), pages), nothing, "{}", race.context);
        }
        c.finish(race.context); // allocations and frames are back, once
    });
    println!("each CPU won: {:?}", firsts.get());
    assert!(firsts.get().iter().all(|n| *n > 0), "both must be seen");
}

/// One CPU unmaps, maps anew at the same place and gives that up; the other comes late, with the
/// old length.
#[test]
fn a_late_raw_unmap_leaves_a_new_mapping_of_another_size_alone() {
    let sizes = [
        (3, 2),
        (3, 4),
        (4, 1),
        (4, 3),
        (1, 4),
        (2, 1),
        (3, 3),
        (4, 4),
    ];
    let late_won = Cell::new(0);
    over_seeds("a late raw unmap", |c, race| {
        let (before, after) = sizes[(race.seed / 8 % 8) as usize];
        let old = map(&c, before).expect("free");
        let new = Cell::new(None);
        let ended = Cell::new(0);
        let owner = || {
            let won = u32::from(unmap(&c, old));
            ended.set(ended.get() + won);
            // while the late one still has the pages, they cannot be had
            while new.get().is_none() {
                new.set(map(&c, after));
                c.rig.machine.machine().platform().relax();
            }
        };
        let late = || {
            for _ in 0..2 {
                let won = u32::from(unmap(&c, old));
                ended.set(ended.get() + won);
                late_won.set(late_won.get() + won);
            }
        };
        race.run(&c, [Box::new(owner), Box::new(late)]);
        let new = new.get().expect("mapped at last");
        let (ended, context) = (ended.get(), race.context);
        if before == after && ended == 2 {
            // it was exactly what was asked for
            assert!(!unmap(&c, new), "{context}: unmapped before");
        } else {
            assert_eq!(ended, 1, "{context}: the old one ended once");
            let mut whole: Vec<_> = (TO..TO + after).map(Some).collect();
            whole.push(None);
            assert_eq!(mapped(&c, AT, after), whole, "{context}");
            assert!(unmap(&c, new), "{context}: the new one is still there");
        }
        c.finish(context);
    });
    assert!(late_won.get() > 0, "it must win at times");
}

/// What came of it is either done, or another CPU's turn.
fn changed(result: Result<(), AttachError>) -> bool {
    match result {
        Ok(()) => true,
        Err(
            AttachError::Busy { .. }
            | AttachError::Attached { .. }
            | AttachError::NotAttached { .. },
        ) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn after_a_race_of_attach_and_detach_close_leaves_no_device() {
    let busy = Cell::new(0u64);
    over_seeds("attach against detach", |c, race| {
        let mapping = c
            .domain
            .map_at(AT.addr(), buffer(TO, 1), Direction::ToDevice);
        let _until_the_end = mapping.expect("free");
        let domain = c.domain.domain();
        let rounds = 2 + race.seed % 2;
        let cpu = |turn: u64| -> Body<'_> {
            let busy = &busy;
            Box::new(move || {
                for round in 0..rounds {
                    let result = match (round + turn) % 2 {
                        0 => domain.attach(DISK),
                        _ => domain.detach(DISK),
                    };
                    if let Err(AttachError::Busy { .. }) = result {
                        busy.set(busy.get() + 1);
                    }
                    changed(result);
                }
            })
        };
        race.run(&c, [cpu(0), cpu(1)]);
        let Crowd { rig, domain, .. } = c;
        domain.close(&[NIC]).expect("closed");
        for source in [NIC, DISK] {
            let reached = rig.access_by(source, AT, AccessKind::Read);
            assert_eq!(reached, None, "{}: {source} after close", race.context);
        }
        rig.end();
    });
    assert!(busy.get() > 0, "they must meet");
}

/// All ids are taken; one domain closes, full of what its device had cached, and the other CPU
/// waits for its id.
#[test]
fn an_id_is_given_again_only_when_its_domain_is_gone() {
    const OTHER: SourceId = SourceId(0x0028);
    over_seeds("close against open", |c, race| {
        let open = || c.rig.machine.domain::<Small>(race.design);
        let old = open().expect("an id is left");
        old.attach(DISK).expect("attached");
        let mapping = old.map_at(AT.addr(), buffer(TO, 4), Direction::ToDevice);
        let _until_the_end = mapping.expect("free");
        for page in IovaRange::new(AT, PageCount(4)).iter() {
            let reached = c.rig.access_by(DISK, page, AccessKind::Read);
            assert!(reached.is_some(), "P14");
        }
        let mut others = Vec::new();
        let none = loop {
            match open() {
                Ok(domain) => others.push(domain),
                Err(none) => break none,
            }
        };
        assert_eq!(none, PagedError::NoDomainId.into());
        let id = old.domain().id();
        let with = c.rig.frames_in_use();
        let gone = old.domain().audit().expect("sound").census.frames as usize;
        let new = Cell::new(None);
        let wait = || {
            let domain = loop {
                match open() {
                    Ok(domain) => break domain,
                    Err(none) => assert_eq!(none, PagedError::NoDomainId.into()),
                }
                c.rig.machine.machine().platform().relax();
            };
            // frames are freed by the domain's last flush, and so does the id
            let left = c.rig.frames_in_use();
            assert_eq!(left, with - gone + 1, "the id came before the last flush");
            assert_eq!(domain.domain().id(), id, "the only one that is free");
            domain.attach(OTHER).expect("attached");
            let reach = |page| c.rig.access_by(OTHER, page, AccessKind::Read);
            assert_eq!(reach(AT), None, "P8: nothing is mapped here");
            let buffer = buffer(2 * TO, 1);
            let mapping = domain.map_at(AT.addr(), buffer, Direction::ToDevice);
            let mapping = mapping.expect("free");
            assert_eq!(reach(AT), Some(PhysPage(2 * TO)), "P9");
            assert_eq!(reach(IovaPage(AT.0 + 1)), None, "P8");
            domain.unmap(mapping).expect("unmapped");
            new.set(Some(domain));
        };
        let close = || old.close(&[DISK]).expect("closed");
        race.run(&c, [Box::new(close), Box::new(wait)]);
        let new = new.take().expect("opened");
        c.rig.close(new, &[OTHER]);
        for other in others {
            c.rig.close(other, &[]);
        }
        c.finish(race.context);
    });
}
