// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Parameters: that they add up, are listed and can be varied.

use ioatlas_sim::timing::Params;

#[test]
fn an_invalidation_is_its_parts() {
    for share in [100, 500, 900] {
        let params = Params {
            page_share: share,
            ..Params::default()
        };
        let parts = params.fetch + params.page().0 + params.status().0;
        assert_eq!(parts, 2127);
    }
    let slower = Params::default().slower_invalidation(2);
    assert_eq!(slower.fetch + slower.page().0 + slower.status().0, 2 * 2127);
}

#[test]
fn every_number_is_listed_with_its_source_and_can_be_set_by_name() {
    let mut params = Params::default();
    let all = params.list();
    assert!(all.iter().all(|p| !p.source.is_empty()));
    for listed in &all {
        *params.by_name(listed.name).unwrap() += 1;
    }
    let changed = params.list();
    for (before, after) in all.iter().zip(&changed) {
        assert_eq!(before.value + 1, after.value, "{}", before.name);
    }
    assert_eq!(params.by_name("colour"), None);
}

#[test]
fn jitter_draws_all_within_30_percent_and_again_the_same() {
    let params = Params::default();
    let mut extremes = [0, 0];
    for seed in 0..200 {
        let drawn = params.jittered(seed);
        assert_eq!(drawn, params.jittered(seed));
        for (was, is) in params.list().iter().zip(drawn.list()) {
            let (was, is) = (was.value as f64, is.value as f64);
            assert!((is - was).abs() <= 0.3 * was + 0.5, "{was} became {is}");
            extremes[0] += usize::from(is < 0.75 * was);
            extremes[1] += usize::from(is > 1.25 * was);
        }
    }
    assert!(extremes.iter().all(|&n| n > 100), "{extremes:?}");
    assert_ne!(params.jittered(1), params.jittered(2));
}
