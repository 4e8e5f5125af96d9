// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Typed buffers, given, reached, taken back, dropped, and what their frames are next; and that the
//! oracle sees a frame that is freed, or becomes a table, while a translation leads there.

use crate::suite::{interface::room, placements::*, rig::*};
use ioatlas_dma::{
    design::Design,
    dma_api::*,
    domain::*,
    platform::{FreshFrame, Platform},
    table::{Format, TableConfig},
    units::*,
};
use ioatlas_sim::platform::Sim;
use ioatlas_viommu::{device::*, oracle::Property};
use ioatlas_vtd::layout::QueueDepth;

on_every_machine! {
    typed::a_dropped_buffers_frames_become_tables,
}
on_every_width! {
    typed::a_dropped_buffers_frames_become_tables,
}
on_toy_machines! {
    typed::a_buffer_goes_from_client_to_client,
}

const WRITE: AccessKind = AccessKind::Write;

/// The device writes and reads wherever it was ever told of.
fn look<B: Base>(rig: &Rig<B>, told: &[IovaPage]) {
    for at in told {
        for kind in [WRITE, AccessKind::Read] {
            let _ = rig.access(*at, kind);
        }
    }
}

/// Mappings that need page tables of their own, which devices walk.
fn new_tables<B: Base, F: Format>(rig: &Rig<B>, domain: &Dom<B, F>, told: &mut Vec<IovaPage>) {
    let mut held = Vec::new();
    for nth in 1..=4 {
        let at = IovaPage(room::<F>().end().0 - nth * span::<F>());
        let buffer = buffer(0x1000 + nth, 1);
        // not where buffers have their own addresses
        if let Ok(mapping) = domain.map_at(at.addr(), buffer, Direction::FromDevice) {
            told.push(at);
            held.push(mapping);
        }
    }
    look(rig, told);
    for mapping in held {
        domain.unmap(mapping).expect("unmapped");
    }
    look(rig, told);
}

/// Where the NIC keeps translations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tlb {
    /// In the unit.
    Iotlb,
    /// In its own TLB, too.
    Own,
    /// In its own TLB alone.
    OwnAlone,
}

/// A machine with such a NIC.
fn machine<B: Base, F: Format>(frames: usize, tlb: Tlb) -> Rig<B> {
    let rig = Rig::<B>::with::<F>(frames, |unit| {
        if tlb == Tlb::Iotlb {
            return;
        }
        if tlb == Tlb::OwnAlone {
            unit.caches.iotlb.entries = 0;
        }
        unit.features.device_tlbs = true;
        unit.devices = vec![AtsDevice {
            source: NIC,
            entries: 32,
            answer: Answer::WhenDrained,
            refetch: Refetch::OnDemand,
        }];
    });
    if tlb != Tlb::Iotlb {
        let driver = rig.machine.machine().driver();
        let declared = driver.declare_device_tlb(NIC, QueueDepth::from_capability(4));
        declared.expect("a unit that flushes device TLBs");
    }
    rig
}

/// A domain whose NIC keeps translations there.
fn attached<B: Base, F: Format>(rig: &Rig<B>, tlb: Tlb, design: DomainConfig) -> Dom<B, F> {
    let aperture = chooses_freely(&design).then(room::<F>);
    let domain = rig.domain::<F>(design.aperture(aperture));
    if tlb != Tlb::Iotlb {
        let unit = rig.machine.machine().unit();
        unit.switch_ats(NIC, Ats::On).expect("a device with ATS");
    }
    domain
}

pub fn a_dropped_buffers_frames_become_tables<B: Base, F: Format>() {
    for design in core_designs::<F>() {
        for (nth, placement) in PLACEMENTS.into_iter().enumerate() {
            // each placement has an IOTLB, and a device TLB with or without one
            let own = [Tlb::Own, Tlb::OwnAlone][nth % 2];
            for tlb in [Tlb::Iotlb, own] {
                typed_buffers_come_and_go::<B, F>(design, placement, tlb);
            }
        }
    }
}

fn typed_buffers_come_and_go<B: Base, F: Format>(
    design: DomainConfig,
    placement: Placement,
    tlb: Tlb,
) {
    let rig = machine::<B, F>(512, tlb);
    let domain = attached::<B, F>(&rig, tlb, design);
    let dma = domain.dma(tight(ON_DEMAND));
    let client = dma.client(ClientConfig::default().placement(placement));
    let client = client.expect("a pool");
    let clean = |step: &str| {
        let summary = rig.machine.oracle().summary();
        let name = name(&design);
        assert!(
            summary.violations.is_empty(),
            "{name}, {placement:?}, {tlb:?}, {step}: {summary}"
        );
    };
    let mut told = Vec::new();
    for len in [GRANULE, 1500, 2 * GRANULE + 1] {
        let buffer = client.buffer::<FromDevice>(ByteCount(len));
        let given = client.give(buffer.expect("memory")).expect("room");
        told.extend(given.runs().iter().copied().flat_map(IovaRange::iter));
        look(&rig, &told);
        clean("given");
        let back = client.take_back(given).expect("unmapped");
        look(&rig, &told);
        clean("taken back");
        drop(back);
        look(&rig, &told);
        clean("dropped");
        new_tables(&rig, &domain, &mut told);
        clean("its frames are used again");
    }
    domain.domain().flush().expect("a flush");
    drop((client, dma));
    rig.close(domain, &[NIC]);
    rig.end();
}

/// Each pair of clients: what one has seen is still seen when the other has had it.
pub fn a_buffer_goes_from_client_to_client<B: Base, F: Format>() {
    for design in core_designs::<F>() {
        let rig = Rig::<B>::new::<F>(512);
        let domain = attached::<B, F>(&rig, Tlb::Iotlb, design);
        let dma = domain.dma(tight(ON_DEMAND));
        let clients = PLACEMENTS.map(|placement| {
            let config = ClientConfig::default().placement(placement);
            dma.client(config).expect("a pool")
        });
        let mut told = Vec::new();
        for (first, second) in (0..36).map(|pair| (pair / 6, pair % 6)) {
            let mut buffer = clients[first].buffer::<FromDevice>(ByteCount(GRANULE));
            for client in [first, second] {
                let given = clients[client].give(buffer.take().expect("memory"));
                let given = given.expect("room");
                told.extend(given.runs().iter().copied().flat_map(IovaRange::iter));
                look(&rig, &told);
                buffer = Some(clients[client].take_back(given).expect("unmapped"));
            }
            drop(buffer);
            look(&rig, &told);
            let summary = rig.machine.oracle().summary();
            let pair = (PLACEMENTS[first], PLACEMENTS[second]);
            let name = name(&design);
            assert!(summary.violations.is_empty(), "{name}, {pair:?}: {summary}");
        }
        drop((clients, dma));
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

/// The design that flushes when it is told to.
fn deferred() -> DomainConfig {
    let design = designs().into_iter().find(is_batched);
    design.expect("a policy that batches")
}

/// A buffer that the device reached, or not, and that was taken back. Its frame is free at once,
/// which a typed buffer never does.
fn freed_at_once(rig: &Rig<Sim>, domain: &Dom<Sim, Small>, reached: bool) -> (IovaPage, PhysPage) {
    let dma = domain.dma(tight(ON_DEMAND));
    let client = dma.client(ClientConfig::default()).expect("no pool");
    let buffer = client.buffer::<FromDevice>(ByteCount(GRANULE));
    let buffer = buffer.expect("memory");
    let page = buffer.list()[0].addr.page();
    let given = client.give(buffer).expect("room");
    let at = given.runs()[0].first;
    if reached {
        assert_eq!(rig.access(at, WRITE), Some(page));
    }
    std::mem::forget(client.take_back(given).expect("unmapped"));
    rig.assert_clean();
    let platform = rig.machine.machine().platform();
    // SAFETY: it is not, which the oracle is to see; this memory is the software unit's alone.
    platform.frame_free(crate::BY, unsafe { FreshFrame::new(page) });
    (at, page)
}

/// The last violation is P4, and says `words`.
fn bitten(rig: &Rig<Sim>, words: &str) {
    let summary = rig.machine.oracle().summary();
    let last = summary.violations.last();
    let last = last.unwrap_or_else(|| panic!("nothing was found, not {words:?}"));
    assert_eq!(last.property, Property::P4, "{summary}");
    assert!(last.text.contains(words), "{words:?} is not in {summary}");
}

#[test]
fn p4_a_buffers_frame_that_the_iotlb_leads_to() {
    let rig = Rig::<Sim>::new::<Small>(64);
    let domain = rig.domain::<Small>(deferred());
    let (at, page) = freed_at_once(&rig, &domain, true);
    bitten(
        &rig,
        &format!("frame {page} was freed while a cache leads page {at}"),
    );
    // and whatever it is next
    assert_eq!(rig.access(at, WRITE), Some(page));
    bitten(&rig, "of a buffer, which is Free now");
    let far = IovaPage(span::<Small>() * 4).addr();
    let far = domain.map_at(far, buffer(0x1000, 1), Direction::ToDevice);
    let far = far.expect("room");
    assert!(rig.access(far.iova().page(), AccessKind::Read).is_some());
    bitten(&rig, "became a table while");
    assert_eq!(rig.access(at, WRITE), Some(page), "it writes its own table");
    bitten(&rig, "of a buffer, which is Table now");
}

#[test]
fn p4_a_buffers_frame_that_any_cache_might_lead_to() {
    let rig = Rig::<Sim>::new::<Small>(64);
    let domain = rig.domain::<Small>(deferred());
    freed_at_once(&rig, &domain, false);
    bitten(&rig, "was unmapped from it and not flushed");
}

#[test]
fn p4_a_buffers_frame_that_a_device_tlb_leads_to() {
    // no IOTLB: the device alone knows
    let rig = Rig::<Sim>::with::<Small>(64, |unit| {
        unit.features.device_tlbs = true;
        unit.caches.iotlb.entries = 0;
        unit.devices = vec![AtsDevice {
            source: NIC,
            entries: 8,
            answer: Answer::WhenDrained,
            refetch: Refetch::OnDemand,
        }];
    });
    let (driver, unit) = (rig.machine.machine().driver(), rig.machine.machine().unit());
    let declared = driver.declare_device_tlb(NIC, QueueDepth::from_capability(4));
    declared.expect("a unit that flushes device TLBs");
    let domain = rig.domain::<Small>(deferred());
    unit.switch_ats(NIC, Ats::On).expect("a device with ATS");
    let (at, page) = freed_at_once(&rig, &domain, true);
    assert_eq!(unit.leaves_to(page), [(domain.domain().id(), at)]);
    bitten(&rig, "was freed while a cache leads");
}

#[test]
fn a_large_leaf_leads_to_each_of_its_pages() {
    let rig = Rig::<Sim>::with::<Vtd>(64, |unit| unit.features.largest_leaf = 2);
    let domain = rig.domain::<Vtd>(Design {
        domain: deferred(),
        tables: TableConfig::default().largest_leaf(2),
    });
    let (at, first) = (IovaPage(1 << 9), 1 << 12);
    let large = domain.map_at(at.addr(), buffer(first, 512), Direction::FromDevice);
    let large = large.expect("room");
    assert!(rig.access(IovaPage(at.0 + 7), WRITE).is_some());
    let unit = rig.machine.machine().unit();
    let leads = |page| unit.leaves_to(PhysPage(page));
    let id = domain.domain().id();
    for nth in [0, 300, 511] {
        assert_eq!(leads(first + nth), [(id, IovaPage(at.0 + nth))]);
    }
    assert_eq!((leads(first - 1), leads(first + 512)), (vec![], vec![]));
    domain.unmap(large).expect("unmapped");
    domain.domain().flush().expect("flushed");
    assert_eq!(leads(first + 300), []);
    rig.close(domain, &[NIC]);
}
