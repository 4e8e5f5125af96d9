// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The register block: what is where, which bits stay, halves, capabilities.

use crate::unit::rig::*;
use ioatlas_viommu::config::*;

/// A unit with everything, told nothing.
fn whole() -> Rig {
    let mut config = UnitConfig::new(TOY);
    config.registers.interrupts = InterruptRemapping::Extended;
    Rig::reset(Rig::memory(), &config, None)
}

/// Every 64-bit register that software can write without triggering anything, and its bits.
const WRITABLE: [(u16, u64); 5] = [
    (reg::RTADDR, !0x3ff),
    (reg::CCMD, 0x6000_0003_ffff_ffff),
    (reg::IQA, !0x7f8),
    (reg::IRTA, !0x7f0),
    (reg::IOTLB, 0x3003_ffff_0000_0000),
];

#[test]
fn reserved_bits_are_ignored_and_halves_are_apart() {
    for (at, bits) in WRITABLE {
        let rig = whole();
        assert_eq!(rig.get64(at), 0, "{at:#x} after reset");
        // ICC and IVT trigger, so they are not written here
        let triggers = u64::from(at == reg::IOTLB || at == reg::CCMD) << 63;
        rig.set64(at, !triggers);
        assert_eq!(rig.get64(at), bits, "{at:#x} by 8 bytes");
        assert_eq!(
            u64::from(rig.get32(at)) | u64::from(rig.get32(at + 4)) << 32,
            bits,
            "{at:#x} read by halves"
        );
        rig.set32(at, 0);
        assert_eq!(
            rig.get64(at),
            bits >> 32 << 32,
            "{at:#x}: the low half alone"
        );
        rig.set32(at, u32::MAX);
        rig.set32(at + 4, 0);
        assert_eq!(
            rig.get64(at),
            bits & 0xffff_ffff,
            "{at:#x}: the high half alone"
        );
        rig.check();
    }
}

#[test]
fn offsets_without_a_register_read_as_0_and_ignore_writes() {
    let fixed = (0..0xc0).filter(|at| {
        let named = [
            reg::VER,
            reg::FSTS,
            reg::FECTL,
            reg::FEDATA,
            reg::FEADDR,
            reg::FEUADDR,
            reg::GCMD,
            reg::GSTS,
            reg::ICS,
            reg::IECTL,
            reg::IEDATA,
            reg::IEADDR,
            reg::IEUADDR,
        ];
        let quads = [
            reg::CAP,
            reg::ECAP,
            reg::RTADDR,
            reg::CCMD,
            reg::IQH,
            reg::IQT,
            reg::IQA,
            reg::IQERCD,
            reg::IRTA,
        ];
        !named.contains(at) && !quads.contains(&(at & !7))
    });
    let rest = (0xc0..reg::IVA).chain(reg::IOTLB + 8..0x4000);
    let rig = whole();
    let mut tried = 0;
    for at in fixed.chain(rest).filter(|at| at % 4 == 0) {
        rig.set32(at, u32::MAX);
        assert_eq!(rig.get32(at), 0, "{at:#x}");
        tried += 1;
    }
    assert_eq!(
        tried,
        4 * 1024 - 9 * 2 - 13 - 4,
        "all but 9 quads, 13 words, IVA and IOTLB"
    );
    assert_eq!((rig.get32(reg::GSTS), rig.get32(reg::FSTS)), (0, 0));
    assert_eq!(
        rig.get64(reg::RTADDR) | rig.get64(reg::IQA) | rig.get64(reg::IRTA),
        0
    );
    for at in [1, 2, 3, reg::VER + 2, reg::CAP + 1] {
        assert_eq!(rig.get32(at), 0, "no register begins at {at}");
    }
}

#[test]
fn read_only_and_write_only_registers() {
    let rig = whole();
    for at in [reg::CAP, reg::ECAP, reg::IQH, reg::IQERCD] {
        let before = rig.get64(at);
        rig.set64(at, !before);
        assert_eq!(rig.get64(at), before, "{at:#x}");
    }
    rig.set64(reg::GCMD, u64::from(u32::MAX) << 32); // GSTS, nothing to GCMD
    assert_eq!((rig.get32(reg::GCMD), rig.get32(reg::GSTS)), (0, 0));
    rig.set32(reg::GCMD, 1 << 31);
    assert_eq!(rig.get64(reg::GCMD), 1 << 63, "the command reads as 0");
    rig.set64(reg::IVA, u64::MAX);
    assert_eq!(rig.get64(reg::IVA), 0, "IVA is write only");
    assert_eq!(rig.get32(reg::VER), 0x10);
}

#[test]
fn the_tail_is_in_18_to_4_and_written_by_its_low_half() {
    let rig = Rig::toy();
    let [low, high] = wait(rig.status << 12, 7);
    rig.poke(rig.ring, 0, low);
    rig.poke(rig.ring, 1, high);
    rig.set32(reg::IQT + 4, 1 << 4);
    assert_eq!((rig.head(), rig.get64(reg::IQT)), (0, 0));
    rig.set32(reg::IQT, 0xfff8_001f);
    assert_eq!((rig.head(), rig.get64(reg::IQT)), (1, 0x10));
    assert_eq!(rig.peek(rig.status, 0), 7);
}

#[test]
fn the_ring_stays_where_it_is_while_the_queue_is_on() {
    let rig = Rig::toy();
    rig.set64(reg::IQA, 0);
    rig.set32(reg::IQA, 7);
    assert_eq!(rig.get64(reg::IQA), rig.ring << 12);
}

#[test]
fn without_a_queue_its_registers_are_reserved() {
    let rig = Rig::without_queue(|_| {});
    assert_eq!(rig.get64(reg::ECAP) >> 1 & 1, 0);
    rig.set32(reg::GCMD, 1 << 31 | 1 << 26);
    assert_eq!(rig.get32(reg::GSTS), 1 << 31 | 1 << 30, "QIE is reserved");
    for at in [reg::IQA, reg::IQT, reg::ICS - 4, reg::IECTL, reg::IEADDR] {
        rig.set64(at, u64::MAX);
        assert_eq!(rig.get64(at), 0, "{at:#x}");
    }
}

#[test]
fn capabilities_say_where_records_and_requests_are() {
    let mut config = UnitConfig::new(TOY);
    let r = &mut config.registers;
    (r.fault_offset, r.iotlb_offset) = (0x3a0, 0x110);
    let rig = Rig::new(&config);
    assert_eq!(rig.get64(reg::CAP) >> 24 & 0x3ff, 0x3a);
    assert_eq!(rig.get64(reg::ECAP) >> 8 & 0x3ff, 0x11);
    rig.read(9);
    assert_eq!(rig.get64(0x3a0), 9 << 12);
    assert_eq!((rig.get64(reg::FRCD), rig.get64(reg::IOTLB)), (0, 0));
    rig.set64(0x118, 3 << 60);
    assert_eq!(rig.get64(0x118), 3 << 60);
    assert_eq!(rig.unit.register_bytes(), 0x3a0 + 16 * 16);
}

#[test]
fn capability_bits_follow_the_configuration() {
    let bits = |change: &dyn Fn(&mut RegisterConfig)| {
        let mut config = UnitConfig::new(TOY);
        change(&mut config.registers);
        let rig = Rig::reset(Rig::memory(), &config, None);
        (rig.get64(reg::CAP), rig.get64(reg::ECAP))
    };
    let (cap, ecap) = bits(&|_| {});
    let flushes = bits(&|r| r.root_pointer = RootPointer::LatchesAndFlushes);
    assert_eq!(flushes, (cap | 1 << 63, ecap), "ESRTPS");
    let compatible = bits(&|r| r.interrupts = InterruptRemapping::Compatible);
    assert_eq!(compatible, (cap, ecap | 1 << 3 | 0xf << 20), "IR, MHMV");
    let extended = bits(&|r| r.interrupts = InterruptRemapping::Extended);
    assert_eq!(extended, (cap, ecap | 3 << 3 | 0xf << 20), "EIM");
    let registers = bits(&|r| r.interface = InvalidationInterface::Registers);
    assert_eq!(registers, (cap, ecap & !2), "QI");
    for (what, bit) in [("RWBF", 4), ("PLMR", 5), ("PHMR", 6), ("AFL", 3)] {
        assert_eq!(cap >> bit & 1, 0, "{what}");
    }
}

#[test]
fn places_that_do_not_fit_are_refused() {
    let check = |fault_offset, iotlb_offset, records| {
        let mut config = UnitConfig::new(TOY);
        config.registers.fault_offset = fault_offset;
        config.registers.iotlb_offset = iotlb_offset;
        config.fault_records = records;
        config.check()
    };
    assert_eq!(check(0x100, 0xf0, 1), Ok(()), "neighbours");
    assert_eq!(check(0xc0, 0xd0, 1), Ok(()));
    assert_eq!(check(0x3ff0, 0xf0, 256), Ok(()));
    let overlap = PlaceError::Overlap {
        faults: 0xe0,
        records: 2,
        iotlb: 0xf0,
    };
    assert_eq!(check(0xe0, 0xf0, 2), Err(overlap.into()));
    assert_eq!(
        overlap.to_string(),
        "2 fault records at 0xe0 overlap IVA and IOTLB at 0xf0"
    );
    assert!(check(0xf0, 0xf0, 1).is_err());
    for place in [0, 0xb0, 0x228, 0x4000] {
        let what = "offset of the fault records";
        assert_eq!(
            check(place, 0xf0, 1),
            Err(PlaceError::Place { what, place }.into())
        );
        assert!(check(0x220, place, 1).is_err(), "{place:#x}");
    }
}
