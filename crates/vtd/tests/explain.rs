// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a unit is said to do is what the driver does.

mod common;

use common::{QEMU_CAP, QEMU_ECAP, rig::up_with};
use ioatlas_dma::translator::{OnMap, RemappingUnit};
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
        // 57 bits are in SAGAW, and beyond MGAW
        let allowed = [field, "MGAW"];
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
    assert!(text.contains("the unit is refused"), "{text}");
}
