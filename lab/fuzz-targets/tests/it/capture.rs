// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Replays the corpus; with `IOATLAS_FUZZ_SECONDS=n` set, mutates it for n seconds
//! (`IOATLAS_FUZZ_SEED` repeats a run).

use fastrand::Rng;
use ioatlas_fuzz_targets::{capture as fuzz, corpus};
use ioatlas_iotlb::import::Format;

/// A target and what its inputs are made of.
struct Target {
    corpus: &'static str,
    check: fn(&[u8]) -> bool,
    tokens: &'static [&'static [u8]],
}

const TRACE: Target = Target {
    corpus: "trace",
    check,
    tokens: &TOKENS,
};

/// The importers, one a format.
const CAPTURES: [Target; 4] = [
    Target {
        corpus: "ftrace",
        check: |input| check_capture(Format::Ftrace, input),
        tokens: &KERNEL_TOKENS,
    },
    Target {
        corpus: "perf",
        check: |input| check_capture(Format::Perf, input),
        tokens: &KERNEL_TOKENS,
    },
    Target {
        corpus: "qemu",
        check: |input| check_capture(Format::Qemu, input),
        tokens: &KERNEL_TOKENS,
    },
    Target {
        corpus: "csv",
        check: |input| check_capture(Format::Csv, input),
        tokens: &KERNEL_TOKENS,
    },
];

const TOKENS: [&[u8]; 14] = [
    b"\n",
    b" ",
    b"M ",
    b"U ",
    b"A ",
    b" rw",
    b" - sg",
    b" fffffffffffff ",
    b"0",
    b"4503599627370496",
    b"# mark 1\n",
    b"# at 5 0 a task\n",
    b" 4095+2",
    b"\xff",
];

const KERNEL_TOKENS: [&[u8]; 15] = [
    b"\n",
    b" ",
    b"=",
    b",",
    b"0x",
    b"ffffffffffffffff",
    b"18446744073709551615",
    b"dma_unmap_page",
    b"dma_map_sg",
    b"{0x1000,0x2000}",
    b"[000]",
    b"CPU:0 [LOST 5 EVENTS]\n",
    b"# entries-in-buffer/entries-written: 1/9\n",
    b"dma_sync_single_for_cpu",
    b"\xff",
];

/// Runs one capture: what is loaded is what is converted, and what is anonymous stays what it is;
/// true if valid.
fn check_capture(format: Format, input: &[u8]) -> bool {
    let _ = fuzz::capture(None, input);
    let Ok(imported) = fuzz::capture(Some(format), input) else {
        return false;
    };
    if let Some(converted) = &imported.converted {
        assert!(*converted == imported.trace);
    }
    if let Some([once, twice]) = &imported.anonymous {
        let differs = once.lines().zip(twice.lines()).find(|(a, b)| a != b);
        assert_eq!((differs, once.len()), (None, twice.len()));
        let events = once.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(events, imported.trace.events().len());
    }
    true
}

/// Runs one input and cross-checks what the parts of the crate say; true if valid.
fn check(input: &[u8]) -> bool {
    let Ok(findings) = fuzz::trace(input) else {
        return false;
    };
    let (info, outcome, counts) = (&findings.info, &findings.outcome, &findings.counts);
    assert_eq!(
        outcome.accesses,
        outcome.hits + outcome.misses + outcome.faults
    );
    assert_eq!(
        (counts.accesses, counts.hits, counts.misses(), counts.faults),
        (
            outcome.accesses,
            outcome.hits,
            outcome.misses,
            outcome.faults
        )
    );
    assert_eq!(info.anomalies, outcome.anomalies);
    let events: u64 = info
        .devices
        .iter()
        .map(|d| d.maps + d.unmaps + d.accesses)
        .sum();
    assert_eq!(events, info.events as u64);
    true
}

#[test]
fn corpus_inputs_end_as_their_names_say() {
    let (valid, bad) = ends(&TRACE);
    assert!(
        valid >= 5 && bad >= 10,
        "{valid} valid and {bad} bad inputs"
    );
}

#[test]
fn corpora_of_captures_end_as_their_names_say() {
    for target in &CAPTURES {
        let (valid, bad) = ends(target);
        assert!(valid >= 2 && bad >= 2, "{}", target.corpus);
    }
}

/// How many inputs of a corpus are valid, and how many not.
fn ends(target: &Target) -> (u32, u32) {
    let (mut valid, mut bad) = (0, 0);
    for (name, input) in corpus::inputs(target.corpus) {
        let expected = name.starts_with("valid-");
        assert!(expected || name.starts_with("bad-"), "{name} says neither");
        assert_eq!((target.check)(&input), expected, "{name}");
        *(if expected { &mut valid } else { &mut bad }) += 1;
    }
    (valid, bad)
}

#[test]
fn mutated_corpus() {
    mutated(&TRACE);
}

#[test]
fn mutated_ftrace() {
    mutated(&CAPTURES[0]);
}

#[test]
fn mutated_perf() {
    mutated(&CAPTURES[1]);
}

#[test]
fn mutated_qemu() {
    mutated(&CAPTURES[2]);
}

#[test]
fn mutated_csv() {
    mutated(&CAPTURES[3]);
}

fn mutated(target: &Target) {
    let corpus = corpus::contents(target.corpus);
    let mut valid = 0u64;
    let of = |seed| {
        let mut random = Rng::with_seed(seed);
        move || mutate(&corpus, target.tokens, &mut random)
    };
    corpus::for_a_while(2000, of, |input| valid += u64::from((target.check)(input)));
    println!("{}: {valid} of them valid", target.corpus);
}

/// One to four small changes to a random input.
fn mutate(corpus: &[Vec<u8>], tokens: &[&[u8]], rng: &mut Rng) -> Vec<u8> {
    let mut input = rng.choice(corpus).unwrap().clone();
    for _ in 0..rng.u8(1..5) {
        let at = rng.usize(..=input.len());
        match rng.u8(..6) {
            0 => input.truncate(at),
            1 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
            2 if at < input.len() => drop(input.remove(at)),
            3 => drop(input.splice(at..at, rng.choice(tokens).unwrap().iter().copied())),
            4 => {
                // Copy a piece elsewhere: repeats whole lines now and then.
                let end = rng.usize(at..=input.len());
                let piece = input[at..end].to_vec();
                let to = rng.usize(..=input.len());
                input.splice(to..to, piece);
            }
            _ => {
                let other = rng.choice(corpus).unwrap();
                let from = rng.usize(..=other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
    input.truncate(1 << 16);
    input
}
