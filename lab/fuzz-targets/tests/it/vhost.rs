// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Replays the corpora of the message stream and of the cache; with `IOATLAS_FUZZ_SECONDS=n` set,
//! mutates it for n seconds (`IOATLAS_FUZZ_SEED` repeats a run).

use ioatlas_fuzz_targets::{
    cache::{self as on_caches, Findings as CacheFindings},
    corpus::{inputs, mutated},
    stream::{self as fuzz, Findings},
};

/// What the first word of a seed's name promises. What queues do is a race with the end of the
/// session, so that is promised of some runs of several.
fn as_promised(name: &str, f: &Findings) -> bool {
    match name.split('-').next().unwrap() {
        "obeys" => f.obeyed > 0 && f.refused == 0 && !f.broken,
        "refused" => f.refused == 4 && !f.broken,
        "broken" => f.broken,
        "chains" => f.chains > 0,
        "asks" => f.asked > 0,
        _ => !name.ends_with(".hex"),
    }
}

#[test]
fn corpus_inputs_end_as_their_names_say() {
    for (name, input) in &inputs("stream") {
        let mut last = Findings::default();
        let kept = (0..200).any(|_| {
            last = fuzz::stream(input);
            as_promised(name, &last)
        });
        assert!(kept, "{name}: {last:?}");
    }
}

#[test]
fn mutated_corpus() {
    let (mut obeyed, mut chains, mut broken) = (0, 0, 0);
    mutated("stream", |input| {
        let findings = fuzz::stream(input);
        obeyed += findings.obeyed;
        chains += u64::from(findings.chains);
        broken += u64::from(findings.broken);
    });
    println!("{obeyed} messages obeyed, {chains} chains, {broken} connections closed");
    assert!(obeyed > 0 && broken > 0);
}

/// The same of the caches.
fn cache_as_promised(name: &str, f: &CacheFindings) -> bool {
    match name.split('-').next().unwrap() {
        "hits" => f.hits > 0,
        "waits" => f.waited > 0,
        "beaten" => f.beaten > 0,
        "evicts" => f.evictions > 0 && f.hits > 0,
        "refuses" => f.refused > 0 && f.hits == 0,
        _ => !name.ends_with(".hex"),
    }
}

#[test]
fn caches_end_as_the_names_of_their_inputs_say() {
    for (name, input) in &inputs("cache") {
        let findings = on_caches::cache(input);
        assert!(cache_as_promised(name, &findings), "{name}: {findings:?}");
    }
}

#[test]
fn mutated_inputs_of_caches() {
    let (mut hits, mut evictions) = (0, 0);
    mutated("cache", |input| {
        let findings = on_caches::cache(input);
        hits += findings.hits;
        evictions += findings.evictions;
    });
    println!("{hits} pieces compared, {evictions} evictions");
    assert!(hits > 0 && evictions > 0);
}
