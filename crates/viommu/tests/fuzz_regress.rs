// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Replays the corpus; with `IOATLAS_FUZZ_SECONDS=n` set, mutates it for n seconds
//! (`IOATLAS_FUZZ_SEED` repeats a run).
//!
//! A seed is hex with comments; any other file of the corpus (what a fuzzer found) is taken as it is.

use ioatlas_viommu::fuzz::{self, Findings, TableFindings, WindowFindings};
use std::{
    path::Path,
    time::{Duration, Instant, SystemTime},
};

/// Inputs of the corpus by name, sorted.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    let entries = std::fs::read_dir(dir).unwrap();
    let mut inputs: Vec<_> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let bytes = std::fs::read(&path).unwrap();
            match name.ends_with(".hex") {
                true => (name, assemble(std::str::from_utf8(&bytes).unwrap())),
                false => (name, bytes),
            }
        })
        .collect();
    inputs.sort();
    inputs
}

fn assemble(text: &str) -> Vec<u8> {
    let code = text.lines().map(|line| line.split('#').next().unwrap());
    let digits: Vec<u8> = code
        .flat_map(str::chars)
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).expect("hex") as u8)
        .collect();
    assert!(digits.len().is_multiple_of(2), "half a byte");
    digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()
}

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
    let corpus = corpus("unit");
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
    for (name, input) in &corpus("mmio") {
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
    for (name, input) in &corpus("dmar") {
        let findings = fuzz::dmar(input);
        assert!(table_as_promised(name, &findings), "{name}: {findings:?}");
    }
}

#[test]
fn mutated_tables_of_firmware() {
    let (mut taken, mut routed) = (0, 0);
    mutated("dmar", |input| {
        let findings = fuzz::dmar(input);
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

fn mutated(target: &str, mut run: impl FnMut(&[u8])) {
    let number = |name| std::env::var(name).map(|v: String| v.parse::<u64>().expect(name));
    // Without a time to spend, a fixed small number of fixed mutations.
    let (duration, minimum, default_seed) = match number("IOATLAS_FUZZ_SECONDS") {
        Ok(seconds) => {
            let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
            (Duration::from_secs(seconds), 0, now.as_nanos() as u64)
        }
        Err(_) => (Duration::ZERO, 2000, 1),
    };
    let seed = number("IOATLAS_FUZZ_SEED").unwrap_or(default_seed);
    println!("IOATLAS_FUZZ_SEED={seed}");
    let mut random = Random(seed);
    let corpus: Vec<Vec<u8>> = corpus(target).into_iter().map(|(_, input)| input).collect();
    let (start, mut runs) = (Instant::now(), 0);
    while runs < minimum || start.elapsed() < duration {
        run(&mutate(&corpus, &mut random));
        runs += 1;
    }
    println!("{runs} inputs");
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA'14).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % end as u64) as usize
    }
    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// One to four small changes to a random input: a bit, a byte, or a record from anywhere put in, out or elsewhere.
fn mutate(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = random.pick(corpus).clone();
    let whole_record =
        |random: &mut Random, of: &[u8]| 1 + 12 * random.below(of.len().div_ceil(12));
    for _ in 0..1 + random.below(4) {
        if input.is_empty() {
            break;
        }
        let at = random.below(input.len());
        match random.below(5) {
            0 => input[at] ^= 1 << random.below(8),
            1 => input[at] = random.below(256) as u8,
            2 => {
                let other = random.pick(corpus);
                let from = whole_record(random, other).min(other.len());
                let record = &other[from..(from + 12).min(other.len())];
                let to = whole_record(random, &input).min(input.len());
                input.splice(to..to, record.iter().copied());
            }
            3 => {
                let from = whole_record(random, &input).min(input.len());
                input.drain(from..(from + 12).min(input.len()));
            }
            _ => {
                let other = random.pick(corpus);
                let from = whole_record(random, other).min(other.len());
                let to = whole_record(random, &input).min(input.len());
                input.truncate(to);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
    input
}
