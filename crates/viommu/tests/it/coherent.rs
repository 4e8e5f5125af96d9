// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Arrays that CPU and device share: what each writes the other reads; frames are free again only
//! where no translation leads there, under every design, however the array ends.

use crate::suite::rig::{Dom, NIC, Rig, Vtd, core_designs, name};
use ioatlas_dma::{dma_api::*, domain::*, platform::*, units::*};
use ioatlas_host::Host;
use ioatlas_viommu::{
    machine::WatchedUnit,
    oracle::{Failing, WatchedClient, WatchedDma, WatchedPlatform},
    unit::Injection,
};
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const FRAMES: usize = 256;
/// Not whole pages, and more than one.
const ENTRIES: usize = 600;

/// As a device would define it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Entry {
    address: u64,
    len: u32,
    id: u16,
    status: u16,
}

impl Entry {
    fn nth(nth: usize) -> Self {
        Entry {
            address: nth as u64 * 0x1_0001_0001,
            len: nth as u32 + 7,
            id: nth as u16,
            status: !nth as u16,
        }
    }
}

type Memory = WatchedPlatform<Failing<Host>>;
type Api = WatchedDma<Memory, Vtd, WatchedUnit<Failing<Host>>>;
type Client = WatchedClient<Memory, Vtd, WatchedUnit<Failing<Host>>>;

fn client(domain: &Dom<Host, Vtd>) -> (Api, Client) {
    let dma = domain.dma(DmaConfig::default());
    let client = dma.client(ClientConfig::default()).expect("no pool");
    (dma, client)
}

fn reach(rig: &Rig<Host>, pages: &[IovaPage]) {
    for page in pages {
        let _ = rig.access(*page, AccessKind::Write);
    }
}

/// The device writes `nth`, and reads it.
fn both_ways(rig: &Rig<Host>, ring: &mut Coherent<[Entry]>, nth: usize) {
    let machine = rig.machine.machine();
    let (at, entry) = (ring.iova_of(nth), Entry::nth(nth));
    assert_eq!(ring.read(nth).as_bytes(), [0; size_of::<Entry>()], "zeroed");
    ring.write(nth, entry);
    let mut seen = [0; size_of::<Entry>()];
    machine.dma_read(NIC, at, &mut seen).expect("mapped");
    assert_eq!(seen, *entry.as_bytes());
    let answer = Entry::nth(nth + 1);
    machine
        .dma_write(NIC, at, answer.as_bytes())
        .expect("mapped");
    assert_eq!(ring.read(nth), answer);
    let status = offset_of!(Entry, status);
    assert_eq!(ring.read_field::<u16>(nth, status), answer.status);
    ring.write_field(nth, status, 0x1234u16);
    machine.dma_read(NIC, at, &mut seen).expect("mapped");
    let merged = Entry {
        status: 0x1234,
        ..answer
    };
    assert_eq!(seen, *merged.as_bytes(), "the rest is as it was");
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Freed,
    Dropped,
}

fn an_array_lives_and_ends(design: DomainConfig, end: End) {
    let rig = Rig::<Host>::new::<Vtd>(FRAMES);
    let domain = rig.domain::<Vtd>(design);
    let what = format!("{} {end:?}", name(&design));
    let (dma, client) = client(&domain);
    // tables are there from the second array on
    for round in 0..3 {
        let before = rig.frames_in_use();
        let mut ring = client.alloc_coherent(ENTRIES).expect("memory");
        assert_eq!(ring.len(), ENTRIES);
        for nth in [0, 1, 255, 256, ENTRIES - 1] {
            both_ways(&rig, &mut ring, nth);
        }
        let pages = ring.frames().pages.0;
        let first = ring.iova().page().0;
        let at: Vec<_> = (first..first + pages).map(IovaPage).collect();
        match end {
            End::Freed => client.free_coherent(ring).expect("unmapped"),
            End::Dropped => client.drop_coherent(ring),
        }
        // the oracle is told of frames that are freed too early, and of what is reached then
        reach(&rig, &at);
        domain.domain().flush().expect("flushed");
        reach(&rig, &at);
        rig.assert_clean();
        if round > 0 {
            assert_eq!(rig.frames_in_use(), before, "P4: all are back: {what}");
        }
    }
    assert_eq!(dma.dma().drop_errors(), 0);
    drop((client, dma));
    rig.close(domain, &[NIC]);
    rig.end();
}

#[test]
fn what_is_freed_is_out_of_reach_before_it_is_free() {
    for design in core_designs::<Vtd>() {
        an_array_lives_and_ends(design, End::Freed);
    }
}

#[test]
fn what_is_dropped_is_out_of_reach_before_it_is_free() {
    for design in core_designs::<Vtd>() {
        an_array_lives_and_ends(design, End::Dropped);
    }
}

#[test]
fn frames_that_go_with_a_mapping_are_out_of_reach_before_they_are_free() {
    for design in core_designs::<Vtd>() {
        let rig = Rig::<Host>::new::<Vtd>(FRAMES);
        let domain = rig.domain::<Vtd>(design);
        let p = rig.machine.machine().platform();
        for round in 0..3 {
            let before = rig.frames_in_use();
            // by their addresses, or the oracle takes one for the other
            let mut frames: Vec<_> = (0..3).filter_map(|_| p.frame_alloc()).collect();
            frames.sort_by_key(FreshFrame::page);
            let list: Vec<_> = frames.iter().map(|f| PhysRange::page(f.page())).collect();
            let mapping = domain.map_list(&list, Direction::FromDevice).expect("room");
            let at: Vec<_> = mapping.range().iter().collect();
            reach(&rig, &at);
            let frames = frames.into_iter().map(FreshFrame::publish).collect();
            // SAFETY: they were mapped by it alone.
            unsafe { domain.unmap_then(mapping, frames) }.expect("unmapped");
            reach(&rig, &at);
            domain.domain().flush().expect("flushed");
            reach(&rig, &at);
            rig.assert_clean();
            let what = name(&design);
            let back = rig.frames_in_use() == before;
            assert!(back || round == 0, "P4: all are back: {what}");
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

/// Each allocation of frames in turn, of the array and of tables for it.
#[test]
fn without_frames_nothing_is_allocated() {
    let mut nth = 0;
    loop {
        let rig = Rig::<Host>::new::<Vtd>(FRAMES);
        let domain = rig.domain::<Vtd>(DomainConfig::default());
        let (dma, client) = client(&domain);
        let before = rig.frames_in_use();
        rig.failing().fail_nth(nth);
        let made = client.alloc_coherent::<Entry>(ENTRIES);
        let failed = !rig.failing().disarm();
        assert_eq!(made.is_err(), failed, "P10: {made:?}");
        match made {
            Ok(ring) => client.free_coherent(ring).expect("unmapped"),
            Err(_) => {
                domain.domain().flush().expect("flushed");
                domain.domain().reclaim_tables().expect("flushed");
                assert!(rig.frames_in_use() <= before + 3, "P10: tables at most");
            }
        }
        drop((client, dma));
        rig.close(domain, &[NIC]);
        rig.end();
        if !failed {
            break;
        }
        nth += 1;
    }
    assert!(nth > 2, "frames of tables, and the array's: {nth}");
}

/// An invalidation that fails leaves frames with the device for ever, and the driver is told.
#[test]
fn without_an_invalidation_frames_stay_with_the_device() {
    let rig = Rig::<Host>::new::<Vtd>(FRAMES);
    let domain = rig.domain::<Vtd>(DomainConfig::default());
    let (dma, client) = client(&domain);
    let array = || client.alloc_coherent::<Entry>(ENTRIES).expect("memory");
    let (freed, dropped) = (array(), array());
    let in_use = rig.frames_in_use();
    let unit = rig.machine.machine().unit();
    unit.inject(Injection::QueueErrors(u32::MAX));
    let error = client.free_coherent(freed).expect_err("no invalidation");
    assert!(matches!(error, UnmapError::Invalidate { .. }), "{error}");
    client.drop_coherent(dropped);
    assert_eq!(dma.dma().drop_errors(), 1);
    assert_eq!(rig.frames_in_use(), in_use, "P4: quarantined");
    rig.assert_clean();
}

/// What was leaked the device reaches until the domain ends.
#[test]
fn what_is_leaked_stays() {
    let rig = Rig::<Host>::new::<Vtd>(FRAMES);
    let domain = rig.domain::<Vtd>(DomainConfig::default());
    let (dma, client) = client(&domain);
    let array = client.alloc_coherent::<Entry>(1).expect("memory");
    let at = array.iova();
    array.leak();
    domain.domain().flush().expect("flushed");
    let machine = rig.machine.machine();
    machine.dma_write(NIC, at, &[1; 16]).expect("mapped");
    drop((client, dma));
    domain.close(&[NIC]).expect("ended");
    machine.dma_write(NIC, at, &[1; 16]).expect_err("ended");
    rig.assert_clean();
}
