// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Replays the corpus; with `IOATLAS_FUZZ_SECONDS=n` set, mutates it for n seconds
//! (`IOATLAS_FUZZ_SEED` repeats a run).

use fastrand::Rng;
use ioatlas_fuzz_targets::{chains as fuzz, corpus};

#[test]
fn corpus_inputs_end_as_their_names_say() {
    let mut kinds = [0; 3];
    for (name, input) in corpus::inputs("chains") {
        let found = fuzz::chains(&input);
        match name.split('-').next() {
            Some("moves") => {
                kinds[0] += 1;
                assert!(found.moved > 0 && found.stopped == 0, "{name}: {found:?}");
            }
            Some("stops") => {
                kinds[1] += 1;
                assert!(found.stopped > 0, "{name}: {found:?}");
            }
            Some("waits") => {
                kinds[2] += 1;
                let none = (found.moved, found.stopped) == (0, 0);
                assert!(none && found.missed > 0, "{name}: {found:?}");
            }
            _ => panic!("{name} does not say how it ends"),
        }
    }
    assert!(kinds[0] >= 2 && kinds[1] >= 6 && kinds[2] >= 1, "{kinds:?}");
}

#[test]
fn mutated_corpus() {
    let corpus = corpus::contents("chains");
    let (mut moved, mut stopped) = (0u64, 0u64);
    let of = |seed| {
        let mut random = Rng::with_seed(seed);
        move || mutate(&corpus, &mut random)
    };
    corpus::for_a_while(500, of, |input| {
        let found = fuzz::chains(input);
        moved += u64::from(found.moved > 0);
        stopped += u64::from(found.stopped > 0);
    });
    println!("{moved} of them move frames, {stopped} stop a queue");
}

/// One to four small changes to a random input, at whole records mostly.
fn mutate(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut input = rng.choice(corpus).unwrap().clone();
    for _ in 0..rng.u8(1..5) {
        let records = input.len().saturating_sub(3) / 12;
        let record = |rng: &mut Rng| 3 + 12 * rng.usize(..=records);
        let at = rng.usize(..=input.len());
        match rng.u8(..6) {
            0 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
            1 if at < input.len() => input[at] = rng.u8(..),
            2 => {
                let (at, burst) = (record(rng).min(input.len()), [1; 12]);
                drop(input.splice(at..at, burst));
            }
            3 => {
                let (from, to) = (record(rng).min(input.len()), record(rng).min(input.len()));
                let piece = input[from..(from + 12).min(input.len())].to_vec();
                drop(input.splice(to..to, piece));
            }
            4 => {
                let (at, mut new) = (record(rng).min(input.len()), [0; 12]);
                rng.fill(&mut new);
                new[0] %= 7;
                drop(input.splice(at..at, new));
            }
            _ => {
                let other = rng.choice(corpus).unwrap();
                let from = rng.usize(..=other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
    input.truncate(3 + 12 * fuzz::MAX_RECORDS);
    input
}
