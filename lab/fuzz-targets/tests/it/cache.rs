// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Every implementation beside the oracle, on random operations.

use ioatlas_fuzz_targets::cache::{self as fuzz, Findings};
use proptest::prelude::*;

/// Bytes that decode to ops that meet each other: few places, small offsets.
fn close() -> impl Strategy<Value = Vec<u8>> {
    let record = (0..8u8, 0..3u8, 0..70u16, 0..9u8, 0..2u8, 0..3u8, 0..2u8);
    let record = record.prop_map(|(what, part, page, lg2, host, perm, off)| {
        let page = page.to_be_bytes();
        let off = off & (page[1] & 1);
        [
            what, part, page[0], page[1], lg2, host, perm, off, 0, 0, 0, 0,
        ]
    });
    let records = proptest::collection::vec(record, 0..fuzz::MAX_OPS);
    (0..16u8, records).prop_map(|(first, records)| {
        let mut input = vec![first];
        input.extend(records.into_iter().flatten());
        input
    })
}

/// The same over all of the address space, all lengths.
fn far() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..1 + 12 * fuzz::MAX_OPS)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn all_agree_with_the_oracle_close_together(input in close()) {
        fuzz::cache(&input);
    }
    #[test]
    fn all_agree_with_the_oracle_far_apart(input in far()) {
        fuzz::cache(&input);
    }
}

/// The strategies reach what they are about.
#[test]
fn random_operations_hit_miss_evict_and_wait() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let mut all = Findings::default();
    for _ in 0..100 {
        let input = close().new_tree(&mut runner).unwrap().current();
        let found = fuzz::cache(&input);
        all.hits += found.hits;
        all.misses += found.misses;
        all.refused += found.refused;
        all.evictions += found.evictions;
        all.beaten += found.beaten;
        all.waited += found.waited;
    }
    println!("{all:?}");
    let Findings {
        hits,
        misses,
        refused,
        evictions,
        beaten,
        waited,
    } = all;
    assert!(
        [hits, misses, refused, evictions, beaten, waited]
            .iter()
            .all(|n| *n > 20)
    );
}
