// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One domain for all placements, two devices and two CPUs, through what every domain of the suite
//! goes through: every design, the n-th allocation failing for every n, no IOVA left, ticks.

use crate::bounce::{
    rig::*,
    suite::{DISK, NIC, designs, name},
};
use crate::lend;
use ioatlas_dma::{
    dma_api::*,
    domain::{DomainConfig, MapError},
    platform::Platform,
    units::*,
};
use ioatlas_host::Host;
use ioatlas_sim::platform::{Schedule, Sim, World};
use std::{
    cell::{Cell, RefCell},
    sync::mpsc::{Receiver, Sender, channel},
};

const ZERO: u8 = 0;
const DEVICE: u8 = 0xd0;
const BESIDE: u8 = 0xee;

const DIRECTIONS: [Direction; 3] = [
    Direction::ToDevice,
    Direction::FromDevice,
    Direction::Bidirectional,
];

/// Whole granules for those that do not protect what lies beside.
fn shape(client: usize, nth: u64) -> (u64, u64) {
    match client {
        0..=2 => [(100, 60), (4000, 4100), (0, 4096), (9, 8100)][nth as usize % 4],
        _ => [(0, 4096), (0, 8192)][nth as usize % 2],
    }
}

/// Pages of a buffer's own.
const PAGES: usize = 2;
const OPS: u64 = 10;

struct Live {
    client: usize,
    tag: u8,
    mapping: DmaMapping,
    area: PhysAddr,
}

struct Crowd {
    rig: Rig<Sim>,
    /// No area has two users: under deferred invalidation a device may write where it could before.
    areas: RefCell<Vec<PhysAddr>>,
    told: RefCell<Vec<IovaPage>>,
    acting: Cell<usize>,
}

impl Crowd {
    fn end(&self, clients: &[Dev<Sim>], live: Live) {
        let Live {
            client,
            tag,
            mapping,
            area,
        } = live;
        let direction = mapping.direction();
        let buffer = clients[client].unmap(mapping).expect("P14: unmapped");
        let from = buffer.addr.0 - area.0;
        for (at, byte) in (0..).zip(self.rig.peek(area, PAGES as u64 * GRANULE)) {
            let inside = (from..from + buffer.len.0).contains(&at);
            let fine = match (inside, direction) {
                (false, _) => byte == BESIDE,
                (true, Direction::ToDevice) => byte == tag,
                (true, Direction::FromDevice) => [tag, ZERO, DEVICE].contains(&byte),
                (true, Direction::Bidirectional) => [tag, DEVICE].contains(&byte),
            };
            assert!(
                fine,
                "P7: {:?} {direction:?}: byte {at} of {from} and {} is {byte:#x}, tag {tag:#x}",
                PLACEMENTS[client], buffer.len
            );
        }
    }

    fn cpu(&self, nth: u64, to: &Sender<Live>, from: &Receiver<Live>) {
        let clients = PLACEMENTS.map(|placement| self.rig.client(placement));
        let mut held: Vec<Live> = Vec::new();
        for op in 0..OPS {
            let client = ((op + 3 * nth) % 6) as usize;
            let (offset, len) = shape(client, op);
            let area = self.areas.borrow_mut().pop().expect("an area");
            let buffer = PhysRange::new(PhysAddr(area.0 + offset), ByteCount(len));
            let tag = (1 + 2 * op + nth) as u8;
            self.rig.fill(
                PhysRange::new(area, ByteCount(PAGES as u64 * GRANULE)),
                BESIDE,
            );
            self.rig.fill(buffer, tag);
            let direction = DIRECTIONS[((op / 2 + nth) % 3) as usize];
            let mapping = clients[client].map_single(lend(buffer), direction);
            let mapping = mapping.expect("room");
            let first = mapping.iova().page().0;
            let last = Iova(mapping.iova().0 + len - 1).page().0;
            self.told.borrow_mut().extend((first..=last).map(IovaPage));
            held.push(Live {
                client,
                tag,
                mapping,
                area,
            });
            if held.len() > 2 {
                self.end(&clients, held.swap_remove((op % 3) as usize));
            }
            if op % 3 == 2 {
                to.send(held.remove(0)).expect("both ends live");
            }
            // begun by the other CPU
            if let Ok(live) = from.try_recv() {
                self.end(&clients, live);
            }
            if nth == 0 {
                let now = TimeNs(60_000_000 * op);
                self.rig.dma.tick(now);
                self.rig.domain.tick(now).expect("a tick");
            }
        }
        held.into_iter().for_each(|live| self.end(&clients, live));
    }

    fn device(&self, source: SourceId) {
        let mut nth = 0;
        while self.acting.get() > 0 {
            self.rig.p().relax();
            nth += 1;
            let page = {
                let told = self.told.borrow();
                let at = told.len().checked_sub(1 + nth % told.len().clamp(1, 8));
                at.map(|at| told[at])
            };
            let Some(page) = page else { continue };
            for byte in self.rig.device_read(source, page.addr(), GRANULE) {
                assert!(byte != Some(BESIDE), "P7: {source} read beside a buffer");
            }
            self.rig
                .device_write(source, page.addr(), &[DEVICE; GRANULE as usize]);
        }
    }
}

fn all_at_once(design: DomainConfig, seed: u64) {
    let switch_one_in = 2 << (2 * (seed % 3));
    let schedule = Schedule::Sticky {
        seed,
        switch_one_in,
    };
    let context = format!("{}, {schedule}", name(&design));
    let mut rig = Rig::<Sim>::new(512, design, tight(ON_DEMAND));
    let areas = (0..2 * OPS).map(|_| rig.memory(PAGES)).collect();
    let crowd = Crowd {
        rig,
        areas: RefCell::new(areas),
        told: RefCell::default(),
        acting: Cell::new(2),
    };
    let ((to_b, from_a), (to_a, from_b)) = (channel(), channel());
    let mut world = World::new(schedule);
    let ends = [(to_b, &from_b), (to_a, &from_a)];
    for (nth, (to, from)) in (0..).zip(ends) {
        let crowd = &crowd;
        world = world.cpu(move || {
            crowd.cpu(nth, &to, from);
            crowd.acting.set(crowd.acting.get() - 1);
        });
    }
    for (name, source) in [("nic", NIC), ("disk", DISK)] {
        let crowd = &crowd;
        world = world.agent(name, move || crowd.device(source));
    }
    if let Err(failure) = world.try_run() {
        panic!("{context}: {failure}");
    }
    // handed over and not fetched
    let clients = PLACEMENTS.map(|placement| crowd.rig.client(placement));
    for live in from_a.try_iter().chain(from_b.try_iter()) {
        crowd.end(&clients, live);
    }
    drop(clients);
    let rig = crowd.rig;
    for now in [1, 2, 3, 4] {
        rig.dma.tick(TimeNs(now << 40));
    }
    let memory: u64 = rig.dma.usage().iter().map(|pool| pool.memory.0).sum();
    assert!(memory < 64 << 10, "{context}: {memory} bytes when idle");
    rig.end(&context);
}

#[test]
fn all_placements_devices_and_cpus_at_once_in_every_design() {
    for (seed, design) in (0..).zip(designs()) {
        all_at_once(design, seed);
        all_at_once(design, seed + 100);
    }
}

#[test]
fn whichever_allocation_fails_nothing_is_lost_and_the_next_try_succeeds() {
    for design in designs() {
        let mut failed = 0;
        for n in 0.. {
            assert!(n < 200, "it never passed");
            let mut rig = Rig::<Host>::new(512, design, tight(ON_DEMAND));
            let memory = rig.memory(3);
            let clients = PLACEMENTS.map(|placement| rig.client(placement));
            rig.p().fail_nth(n);
            let mut live = Vec::new();
            let mut errors = 0;
            for (nth, client) in clients.iter().enumerate() {
                for (k, direction) in (0..).zip(DIRECTIONS) {
                    let (offset, len) = shape(nth, k);
                    let buffer = PhysRange::new(PhysAddr(memory.0 + offset), ByteCount(len));
                    let map = || client.map_single(lend(buffer), direction);
                    let mapping = map().or_else(|error| {
                        errors += 1;
                        let typed = matches!(
                            error,
                            DmaMapError::NoSpace(_)
                                | DmaMapError::Direct(
                                    MapError::Install(_) | MapError::NoFrame { .. }
                                )
                        );
                        assert!(typed, "{}: {error}", name(&design));
                        map()
                    });
                    live.push((nth, mapping.expect("a second try")));
                }
            }
            let unharmed = rig.p().disarm();
            for (nth, mapping) in live {
                clients[nth].unmap(mapping).expect("unmapped");
            }
            drop(clients);
            rig.end(&format!("{}, allocation {n}", name(&design)));
            failed += errors;
            if unharmed {
                assert_eq!(errors, 0);
                break;
            }
        }
        assert!(
            failed > 0,
            "{}: the fallback chain hid them all",
            name(&design)
        );
    }
}

#[test]
fn without_an_iova_left_each_placement_says_so_and_recovers() {
    for design in designs() {
        let aperture = Some(IovaRange::new(IovaPage(256), PageCount(128)));
        let design = design.aperture(aperture);
        let growth = Growth::OnDemand {
            chunks_max: 0,
            single_use: SingleUse::Allowed,
        };
        let mut rig = Rig::<Host>::new(512, design, tight(growth));
        let memory = rig.memory(1);
        let buffer = PhysRange::new(memory, ByteCount(GRANULE));
        let clients = PLACEMENTS.map(|placement| rig.client(placement));
        for (client, placement) in clients.iter().zip(PLACEMENTS) {
            let mut live = Vec::new();
            let error = loop {
                match client.map_single(lend(buffer), Direction::ToDevice) {
                    Ok(mapping) => live.push(mapping),
                    Err(error) => break error,
                }
                assert!(live.len() <= 128, "P10: more than there are pages");
            };
            match error {
                DmaMapError::NoSpace(lack) => assert_eq!(
                    (lack.slots, lack.single_use),
                    (Lack::Full, Lack::NoIova),
                    "{placement:?}"
                ),
                DmaMapError::Direct(MapError::NoIova(_)) => {}
                other => panic!("{placement:?}: {other}"),
            }
            let one = live.pop().expect("it served some");
            client.unmap(one).expect("unmapped");
            let again = client.map_single(lend(buffer), Direction::ToDevice);
            live.push(again.unwrap_or_else(|e| panic!("{placement:?}: {e}")));
            live.into_iter()
                .for_each(|m| assert!(client.unmap(m).is_ok()));
        }
        drop(clients);
        rig.end(&name(&design));
    }
}
