// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What nothing waits for at once: it is with the unit when it has been asked for.

use super::*;

/// Ends three mappings by `unmap`, which does not wait, and then has the unit answer. Each has to
/// be asked for when it returns, since nothing need be called for long.
fn none_waits<'d, R>(
    domain: &'d Dom,
    told: &Told,
    unmap: impl Fn(&'d Dom, Mapping) -> R,
) -> Vec<R> {
    let buffer = |nth: u64| PhysRange::page(PhysPage(0x100 + nth));
    let mappings = (0..3).map(|nth| domain.map(buffer(nth), Direction::FromDevice).unwrap());
    let mappings: Vec<_> = mappings.collect();
    let before = told.asked();
    let unmapped = (1..).zip(mappings).map(|(nth, mapping)| {
        let unmapped = unmap(domain, mapping);
        let asked = told.asked() - before;
        assert_eq!(asked, nth, "P2: asked for when {nth} calls have returned");
        unmapped
    });
    let unmapped = unmapped.collect();
    told.seen(|seen| {
        seen.answers.fill(Some(Ok(())));
        seen.at_once = Some(Ok(()));
    });
    unmapped
}

#[test]
fn what_nothing_waits_for_is_submitted_at_once() {
    let (unit, told) = unit(1);
    let macos = domain(&Arc::new(unit), PolicyConfig::MacOs(MacOsConfig::default()));
    none_waits(&macos, &told, |domain, mapping| {
        domain.unmap(mapping).unwrap()
    });
    let freed = macos.tick(TimeNs(1)).unwrap().drained;
    assert_eq!(freed, 3, "P11: by one tick");
    macos.close().unwrap();
}

#[test]
fn what_is_finished_later_is_submitted_at_once() {
    let (unit, told) = unit(1);
    let strict = domain(&Arc::new(unit), PolicyConfig::Strict);
    let pending = none_waits(&strict, &told, |domain, mapping| {
        domain.unmap_start(&mut [mapping].into_iter())
    });
    for mut pending in pending {
        assert!(pending.is_done(), "P11: at the first look");
        assert_eq!(pending.finish(), Ok(1));
    }
    strict.close().unwrap();
}
