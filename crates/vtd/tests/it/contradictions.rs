// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Units whose capabilities cannot all be true are refused by name, before anything is taken or
//! written.

use crate::common::{rig::*, *};
use ioatlas_vtd::driver::{BringUpError, RegisterGroup};

/// CAP and ECAP with `value` in bits `low` up.
fn with(register: u64, low: u32, bits: u32, value: u64) -> u64 {
    let mask = ((1 << bits) - 1) << low;
    register & !mask | value << low
}

#[test]
fn each_contradiction_is_refused_by_name() {
    let fro = |at: u64| with(QEMU_CAP, 24, 10, at >> 4);
    let iro = |at: u64| with(QEMU_ECAP, 8, 10, at >> 4);
    let place = |group, offset, cap, ecap| BringUpError::RegisterPlace {
        group,
        offset,
        cap,
        ecap,
    };
    let (faults, iotlb) = (RegisterGroup::FaultRecords, RegisterGroup::Iotlb);
    let overlap = |faults, records, iotlb| BringUpError::RegistersOverlap {
        faults,
        records,
        iotlb,
    };
    // SAGAW of QEMU: 39 and 48 bits
    let narrow = with(QEMU_CAP, 16, 6, 37);
    let only_48 = with(with(QEMU_CAP, 8, 5, 0b00100), 16, 6, 46);
    let no_queue = QEMU_ECAP & !2;
    let (dt, ir) = (no_queue & !8 | 4, no_queue | 8);
    // 200 records of 16 bytes from 0x220 end at 0xea0
    let many = with(QEMU_CAP, 40, 8, 199);
    let cases = [
        (
            narrow,
            QEMU_ECAP,
            BringUpError::NarrowAddresses {
                bits: 38,
                cap: narrow,
            },
        ),
        (
            only_48,
            QEMU_ECAP,
            BringUpError::NarrowAddresses {
                bits: 47,
                cap: only_48,
            },
        ),
        (
            QEMU_CAP,
            dt,
            BringUpError::NeedsQueue {
                field: "DT",
                ecap: dt,
            },
        ),
        (
            QEMU_CAP,
            ir,
            BringUpError::NeedsQueue {
                field: "IR",
                ecap: ir,
            },
        ),
        (fro(0), QEMU_ECAP, place(faults, 0, fro(0), QEMU_ECAP)),
        (
            fro(0xb0),
            QEMU_ECAP,
            place(faults, 0xb0, fro(0xb0), QEMU_ECAP),
        ),
        (QEMU_CAP, iro(0xb0), place(iotlb, 0xb0, QEMU_CAP, iro(0xb0))),
        (QEMU_CAP, iro(0x220), overlap(0x220, 1, 0x220)),
        (many, iro(0xe90), overlap(0x220, 200, 0xe90)),
    ];
    for (cap, ecap, error) in cases {
        let host = host(3);
        let fake = Fake::new(&host);
        (fake.state().cap, fake.state().ecap) = (cap, ecap);
        assert_eq!(bring_up(&host, &fake).err(), Some(error), "{error}");
        assert_eq!(host.frames_in_use(), 0);
        assert_eq!(fake.state().commands, []);
    }
}

/// What is next to a contradiction, and none.
#[test]
fn what_only_looks_like_one_is_served() {
    let cases = [
        // 39 bits of 39 and 48
        (with(QEMU_CAP, 16, 6, 38), QEMU_ECAP),
        // the last record before the IOTLB registers, and those before the first
        (with(QEMU_CAP, 40, 8, 199), with(QEMU_ECAP, 8, 10, 0xea)),
        (with(QEMU_CAP, 24, 10, 0xd), with(QEMU_ECAP, 8, 10, 0xc)),
        // a queue, and no place for registers instead
        (QEMU_CAP, with(QEMU_ECAP, 8, 10, 0)),
        // MAMV without PSI, and with a mask that no address has
        (QEMU_CAP & !(1 << 39), QEMU_ECAP),
        (with(QEMU_CAP, 48, 6, 63), QEMU_ECAP),
    ];
    for (cap, ecap) in cases {
        let host = host(3);
        let fake = Fake::new(&host);
        (fake.state().cap, fake.state().ecap) = (cap, ecap);
        let unit = bring_up(&host, &fake).unwrap();
        assert_eq!(unit.capabilities().cap(), cap);
    }
}
