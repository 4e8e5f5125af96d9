// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Corpora of fuzz targets, for the tests that replay and mutate them without a fuzzer.
//!
//! A *corpus* is a folder of this crate, `corpus/TARGET`, of *inputs*. A file `*.hex` is a *seed*:
//! hex, with comments from `#` to the end of the line; any other file (what a fuzzer found) is
//! taken as it is. *Mutations* are small and come from a seed of the generator, so that a run can
//! be repeated.
//!
//! `IOATLAS_FUZZ_SECONDS=n` mutates for n seconds, from a new seed each time unless
//! `IOATLAS_FUZZ_SEED` names one; without it there is a fixed small number of fixed mutations. Only
//! for tests: it panics where a corpus is not as described.

use fastrand::Rng;
use std::{
    path::Path,
    time::{Duration, Instant, SystemTime},
};

/// Mutations where no time is named.
const FEW: u64 = 2000;
/// Bytes of a record, in every target whose inputs are records behind one byte.
const RECORD: usize = 12;

/// The inputs of a target by name, sorted.
///
/// # Panics
/// There is no such corpus, or a seed in it is not hex.
pub fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = here.join("corpus").join(target);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
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

/// The bytes that a seed says.
///
/// # Panics
/// It is not hex.
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

/// Runs mutations of the corpus of that target.
///
/// # Panics
/// See [`inputs`]; and where a variable of the environment is no number.
pub fn mutated(target: &str, run: impl FnMut(&[u8])) {
    let corpus = contents(target);
    let of = |seed| {
        let mut random = Rng::with_seed(seed);
        move || mutate(&corpus, &mut random)
    };
    for_a_while(FEW, of, run);
}

/// The inputs of a target without their names, as [`inputs`] finds them.
pub fn contents(target: &str) -> Vec<Vec<u8>> {
    let contents = inputs(target).into_iter();
    contents.map(|(_, input)| input).collect()
}

/// Runs what `of` makes from a seed: `few` inputs, or as many as the environment has time for.
///
/// # Panics
/// A variable of the environment is no number.
pub fn for_a_while<M: FnMut() -> Vec<u8>>(
    few: u64,
    of: impl FnOnce(u64) -> M,
    mut run: impl FnMut(&[u8]),
) {
    let number = |name| std::env::var(name).map(|v: String| v.parse::<u64>().expect(name));
    let (duration, minimum, default_seed) = match number("IOATLAS_FUZZ_SECONDS") {
        Ok(seconds) => {
            let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
            (Duration::from_secs(seconds), 0, now.as_nanos() as u64)
        }
        Err(_) => (Duration::ZERO, few, 1),
    };
    let seed = number("IOATLAS_FUZZ_SEED").unwrap_or(default_seed);
    println!("IOATLAS_FUZZ_SEED={seed}");
    let mut next = of(seed);
    let (start, mut runs) = (Instant::now(), 0);
    while runs < minimum || start.elapsed() < duration {
        run(&next());
        runs += 1;
    }
    println!("{runs} inputs");
}

/// One to four small changes to a random input: a bit, a byte, or a record from anywhere put
/// in, out or elsewhere.
fn mutate(corpus: &[Vec<u8>], random: &mut Rng) -> Vec<u8> {
    let mut input = random.choice(corpus).unwrap().clone();
    let whole_record =
        |random: &mut Rng, of: &[u8]| 1 + RECORD * random.usize(..of.len().div_ceil(RECORD).max(1));
    for _ in 0..random.u8(1..=4) {
        if input.is_empty() {
            break;
        }
        let at = random.usize(..input.len());
        match random.usize(..5) {
            0 => input[at] ^= 1 << random.usize(..8),
            1 => input[at] = random.u8(..),
            2 => {
                let other = random.choice(corpus).unwrap();
                let from = whole_record(random, other).min(other.len());
                let record = &other[from..(from + RECORD).min(other.len())];
                let to = whole_record(random, &input).min(input.len());
                input.splice(to..to, record.iter().copied());
            }
            3 => {
                let from = whole_record(random, &input).min(input.len());
                input.drain(from..(from + RECORD).min(input.len()));
            }
            _ => {
                let other = random.choice(corpus).unwrap();
                let from = whole_record(random, other).min(other.len());
                let to = whole_record(random, &input).min(input.len());
                input.truncate(to);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
    input
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_hex_with_comments() {
        assert_eq!(assemble("01 a F # 02\n\n# 3\nff"), [0x01, 0xaf, 0xff]);
    }

    #[test]
    #[should_panic = "half a byte"]
    fn half_a_byte_is_no_seed() {
        assemble("012");
    }

    #[test]
    fn mutations_differ_and_repeat() {
        let corpus = [vec![1; 25], vec![2; 13], vec![]];
        let some = |seed| {
            let mut random = Rng::with_seed(seed);
            let one = |_| mutate(&corpus, &mut random);
            (0..64).map(one).collect::<Vec<_>>()
        };
        assert_eq!(some(1), some(1));
        assert_ne!(some(1), some(2));
        let new = |input: &&Vec<u8>| !corpus.contains(input);
        assert!(some(1).iter().filter(new).count() > 32);
    }
}
