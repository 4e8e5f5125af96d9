// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Replays the corpus; with `IOATLAS_FUZZ_SECONDS=n` set, mutates it for n seconds
//! (`IOATLAS_FUZZ_SEED` repeats a run).

use ioatlas_fuzz_targets::{
    corpus::{inputs, mutated},
    dmar::{self, TableFindings},
    unit::{self as fuzz, Findings, WindowFindings},
};

/// What the first word of a seed's name promises.
fn as_promised(name: &str, f: &Findings) -> bool {
    match name.split('-').next().unwrap() {
        "maps" => f.translated > 0,
        "passes" => f.passed > 0 && f.translated == 0,
        "blocks" => f.blocked > 0 && f.translated == 0,
        "queue" => f.stats.waits > 0 && f.stats.queue_errors == 0,
        "error" => f.stats.queue_errors > 0,
        _ => !name.ends_with(".hex"),
    }
}

#[test]
fn corpus_inputs_end_as_their_names_say() {
    let corpus = inputs("unit");
    let (mut compared, mut drained) = (0, 0);
    for (name, input) in &corpus {
        let findings = fuzz::unit(input);
        assert!(as_promised(name, &findings), "{name}: {findings:?}");
        compared += findings.compared;
        drained += findings.stats.drained;
    }
    println!("{} inputs, {compared} accesses compared", corpus.len());
    assert!(compared >= 50 && drained >= 4, "{compared}, {drained}");
}

/// The same of the register block.
fn window_as_promised(name: &str, f: &WindowFindings) -> bool {
    match name.split('-').next().unwrap() {
        "requests" => f.stats.global_invalidations > 0 && f.status >> 26 & 1 == 0,
        "messages" => f.stats.messages > 0,
        "faults" => f.fault_status != 0,
        "refused" => f.refused > 0 && f.taken == 0,
        "root" => f.status >> 30 & 1 == 1,
        _ => !name.ends_with(".hex"),
    }
}

#[test]
fn register_inputs_end_as_their_names_say() {
    for (name, input) in &inputs("mmio") {
        let findings = fuzz::mmio(input);
        assert!(window_as_promised(name, &findings), "{name}: {findings:?}");
    }
}

/// The same of what firmware leaves in memory.
fn table_as_promised(name: &str, f: &TableFindings) -> bool {
    match name.split('-').next().unwrap() {
        "table" => f.raw.is_ok() && f.structures > 0 && f.skipped == 0,
        "skips" => f.sealed.is_ok() && f.skipped > 0,
        "refused" => f.sealed.is_err(),
        "found" => f.found == Ok(48),
        _ => !name.ends_with(".hex"),
    }
}

#[test]
fn tables_of_firmware_end_as_their_names_say() {
    for (name, input) in &inputs("dmar") {
        let findings = dmar::dmar(input);
        assert!(table_as_promised(name, &findings), "{name}: {findings:?}");
    }
}

#[test]
fn mutated_tables_of_firmware() {
    let (mut taken, mut routed) = (0, 0);
    mutated("dmar", |input| {
        let findings = dmar::dmar(input);
        taken += u64::from(findings.sealed.is_ok());
        routed += u64::from(findings.routed);
    });
    println!("{taken} tables taken, {routed} devices routed");
    assert!(taken > 0 && routed > 0);
}

#[test]
fn mutated_register_inputs() {
    let mut taken = 0;
    mutated("mmio", |input| taken += fuzz::mmio(input).taken);
    assert!(taken > 0);
}

#[test]
fn mutated_corpus() {
    let (mut compared, mut translated) = (0, 0);
    mutated("unit", |input| {
        let findings = fuzz::unit(input);
        compared += findings.compared;
        translated += findings.translated;
    });
    println!("{translated} accesses translated, {compared} compared");
}
