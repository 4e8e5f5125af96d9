// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a unit is said to do is what the driver does.

use crate::common::{rig::*, *};
use ioatlas_dma::invalidation::{Invalidate, OnMap};
use ioatlas_vtd::driver::Explanation;
use ioatlas_vtd::layout::Capabilities;

fn explain(cap: u64, ecap: u64) -> String {
    Explanation::of(&Capabilities::new(cap, ecap)).to_string()
}

/// Every bit that changes what the driver does changes its line, and no other.
#[test]
fn each_capability_has_a_line_of_its_own() {
    let plain = explain(QEMU_CAP, QEMU_ECAP);
    let cases = [
        (1 << 4, 0, "RWBF"),
        (1 << 7, 0, "CM"),
        (1 << 22, 0, "ZLR"),
        (1 << 54, 0, "DWD"),
        (1 << 55, 0, "DRD"),
        (1 << 63, 0, "ESRTPS"),
        (1, 0, "ND"),
        (1 << 35, 0, "SSLPS"),
        (1 << 40, 0, "NFR"),
        (1 << 48, 0, "MAMV"),
        (1 << 11, 0, "SAGAW"),
        (0, 1, "C"),
        (0, 2, "QI"),
        (0, 4, "DT"),
        (0, 8, "IR"),
        (0, 1 << 6, "PT"),
        (0, 1 << 7, "SC"),
        (0, 1 << 43, "SMTS"),
    ];
    for (cap, ecap, field) in cases {
        let other = explain(QEMU_CAP ^ cap, QEMU_ECAP ^ ecap);
        let differ = plain.lines().zip(other.lines()).skip(1);
        let changed: Vec<_> = differ.filter(|(a, b)| a != b).collect();
        // 57 bits are in SAGAW, and beyond MGAW; without a queue, registers matter, and interrupts
        // cannot be remapped
        let allowed = [field, "MGAW", "IRO", "this"];
        assert!(!changed.is_empty(), "{field}");
        for (a, b) in changed {
            let name = b.split_whitespace().next().unwrap();
            assert!(allowed.contains(&name), "{field}: {a} / {b}");
        }
    }
}

#[test]
fn the_words_are_true_of_the_driver() {
    for (bit, on_map, words) in [
        (
            1 << 7,
            OnMap::Invalidate,
            "every map is followed by an invalidation",
        ),
        (
            1 << 4,
            OnMap::FlushWriteBuffers,
            "flushed after every change",
        ),
        (0, OnMap::Nothing, "mapping flushes nothing"),
    ] {
        let (_host, _fake, unit) = up_with(|s| s.cap |= bit);
        assert_eq!(unit.on_map(), on_map);
        let text = unit.explain().to_string();
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn an_unusable_unit_is_explained_too() {
    let text = explain(7, 0);
    assert!(text.contains("ND      claims a reserved number of domain ids: the unit is refused"));
    for width in [39, 48, 57] {
        assert!(
            text.contains(&format!("a domain of {width} bits is refused")),
            "{text}"
        );
    }
    assert!(text.contains("none is ever invalidated alone"), "{text}");
}

/// The last line is what a bring-up would say.
#[test]
fn the_verdict_is_that_of_a_bring_up() {
    let cases = [
        (QEMU_CAP, QEMU_ECAP),
        (QEMU_CAP, QEMU_ECAP & !2),
        (QEMU_CAP, QEMU_ECAP & !2 | 4),
        (QEMU_CAP | 7, QEMU_ECAP),
        (QEMU_CAP & !0x1f00, QEMU_ECAP),
        (QEMU_CAP & !(0x3ff << 24), QEMU_ECAP),
        (0, 0),
    ];
    let mut refused = 0;
    for (cap, ecap) in cases {
        let host = host(3);
        let fake = Fake::new(&host);
        (fake.state().cap, fake.state().ecap) = (cap, ecap);
        let verdict = match bring_up(&host, &fake) {
            Ok(_) => "this driver serves it".to_string(),
            Err(why) => {
                refused += 1;
                format!("this driver refuses it: {why}")
            }
        };
        assert_eq!(explain(cap, ecap).lines().last(), Some(&*verdict));
    }
    assert_eq!(refused, 5);
}

/// QEMU 7.2's unit, as it stands and with every bit that has words turned around.
#[test]
fn no_line_is_too_long_for_a_terminal() {
    let all = [0, u64::MAX].map(|flip| explain(QEMU_CAP ^ flip & !7, QEMU_ECAP ^ flip));
    for line in all.iter().flat_map(|text| text.lines()) {
        let verdict = line.starts_with("this driver");
        assert!(verdict || line.len() < 100, "{}: {line}", line.len());
    }
}
