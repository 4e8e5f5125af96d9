// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a device can be helped by, and by how much, from the numbers of the model.
//!
//! Of a trace with accesses that is misses, maps, and waits as the systems' replay counts them; of
//! a capture maps, and the time that they take at its rate. A remedy for network cards is none for
//! a disk, nor the other way round; of a device that the trace does not say the kind of, it says
//! for which it is.

use super::bouncing;
use super::captures::{Capture, CapturedDevice, Costs, Translated};
use super::catalogue::{self as known, STRATEGIES};
use super::remedy::{Bound, Gain, LEAST, Less, Remedy, sorted};
use super::savings::{Saving, WALK_CACHES};
use super::systems::SystemRow;
use super::verdict::{DeviceVerdict, LARGER};
use ioatlas_present::{Figure, Tag, Unit};

/// Of maps of a frame of 1,500 bytes so many go where a frame has 9,000.
const FRAMES_GONE: f64 = 5.0 / 6.0;

/// For a device of a trace with accesses. `bounced` is what bouncing its maps saves under a strict
/// policy.
#[must_use]
pub(super) fn of_verdict(
    verdict: &DeviceVerdict,
    bounced: Option<bouncing::Gain>,
    systems: &[SystemRow],
) -> Vec<Remedy> {
    let (class, knobs) = (verdict.class, &verdict.knobs);
    let one =
        |about, gains: &[Option<Gain>]| Remedy::new(about, class, gains.iter().flatten().copied());
    let misses = |change: Option<Figure>, left: Option<Figure>| {
        let gain = change.map(|change| Gain::of(Less::Misses, change));
        gain.map(|gain| Gain { left, ..gain })
    };
    let of_saving = |saving: &Saving| misses(saving.change, Some(saving.misses));
    let saved = |name: &str| {
        let mut savings = verdict.savings.iter();
        savings.find(|s| s.strategy == name).and_then(of_saving)
    };
    let pooled = knobs
        .pool_maps
        .map(|gone| fewer(Less::Maps, gone, verdict.maps));
    let pooled = [pooled, misses(knobs.pool_change, knobs.pool_misses)];
    let some_miss = verdict.misses.value > 0.0;
    let on_rings = knobs.consistent_misses.filter(|_| some_miss);
    let on_rings =
        on_rings.map(|on| fewer(Less::Misses, on, verdict.misses).bounded(Bound::AtMost));
    let large = knobs.maps_too_large_for_reuse;
    let large = large.map(|large| fewer(Less::FreshAddresses, large, verdict.maps));
    let none_left = [
        (verdict.maps.value > 0.0).then(|| Gain::of(Less::Maps, all(Tag::Counted))),
        some_miss.then(|| Gain::of(Less::Misses, all(Tag::Simulated))),
    ];
    let reads = knobs.walk_reads_change;
    let reads = reads.map(|change| Gain::of(Less::TableReads, change));
    let larger = misses(verdict.larger_iotlb_change, None);
    let sums = verdict.savings.iter().filter(|s| s.strategy.contains('+'));
    let best = sums.min_by(|a, b| a.misses.value.total_cmp(&b.misses.value));
    let best = best.map(|best| (best.strategy.clone(), of_saving(best)));
    let (sum, best) = best.unwrap_or_default();
    let caches = WALK_CACHES.map(|(level, entries)| format!("{entries} at level {level}"));
    let named = |remedy: Option<Remedy>, of: String| remedy.map(|remedy| remedy.named(of));
    let strategies = STRATEGIES
        .iter()
        .map(|about| one(about, &[saved(about.id)]));
    let others = [
        one(&known::LAZY, &[waits(verdict, systems)]),
        one(&known::PAGE_POOL, &pooled),
        one(&known::SHORT_RINGS, &[on_rings]),
        one(&known::SMALL_TRANSFERS, &[large]),
        one(&known::HUGE_PAGES, &[saved("superpage")]),
        one(&known::PASSTHROUGH, &none_left),
        one(&known::BOUNCING, &[of_bouncing(bounced)]),
        named(one(&known::BEST_SUM, &[best]), sum),
        named(
            one(&known::LARGER_IOTLB, &[larger]),
            format!("{LARGER} times the entries"),
        ),
        named(one(&known::WALK_CACHES, &[reads]), caches.join(", ")),
    ];
    sorted(strategies.chain(others))
}

/// For a device of a capture: nothing where events were lost; where the modes take so little that
/// no time is to be gained, only what protects.
#[must_use]
pub(super) fn of_captured(capture: &Capture, device: &CapturedDevice) -> Vec<Remedy> {
    if !capture.usable {
        return Vec::new();
    }
    let costs = capture.costs.as_ref();
    let one = |about, gain: Option<Gain>| Remedy::new(about, device.class, gain);
    let beside = device.beside;
    let beside = beside.filter(|beside| beside.bytes.value >= LEAST);
    let beside = beside.map(|_| {
        let none = Figure::counted(0.0, Unit::Percent);
        Gain::of(Less::OtherData, all(Tag::Counted)).leaving(none)
    });
    let untrusted = one(&known::UNTRUSTED, beside);
    if capture.takes_little() {
        return sorted([untrusted]);
    }
    let pool = device
        .pool
        .map(|pool| fewer(Less::Maps, pool.maps, device.maps));
    let frames = device.full_frames.map(|frames| {
        let gone = Figure::assumed(frames.value * FRAMES_GONE, Unit::Count);
        fewer(Less::Maps, gone, device.maps).bounded(Bound::AtMost)
    });
    let prefetched = device.alh.map(|estimate| {
        let points = estimate.error;
        Gain::of(Less::Misses, estimate.change).bounded(Bound::Within { points })
    });
    // where none translated, that is what there was
    let is_translated = capture.translated != Translated::No && device.maps.value > 0.0;
    let untranslated = is_translated.then(|| Gain::of(Less::Maps, all(Tag::Counted)));
    sorted([
        one(&known::LAZY, costs.and_then(lazy)),
        one(&known::PAGE_POOL, pool),
        one(&known::LARGE_FRAMES, frames),
        one(&known::PASSTHROUGH, untranslated),
        untrusted,
        one(&known::BOUNCING, of_bouncing(device.bouncing)),
        one(&known::PREFETCH_BOTH, prefetched),
    ])
}

/// So many less, of all that there were.
fn fewer(of: Less, gone: Figure, all: Figure) -> Gain {
    let figure = |value, unit| Figure {
        value,
        unit,
        tag: gone.tag,
    };
    let change = match all.value > 0.0 {
        true => -100.0 * gone.value / all.value,
        false => 0.0,
    };
    Gain::of(of, figure(change, Unit::PercentChange))
        .leaving(figure(all.value - gone.value, Unit::Count))
}

/// Nothing of it is left.
fn all(tag: Tag) -> Figure {
    Figure {
        value: -100.0,
        unit: Unit::PercentChange,
        tag,
    }
}

fn of_bouncing(gain: Option<bouncing::Gain>) -> Option<Gain> {
    gain.map(|gain| Gain::of(Less::Time, gain.time))
}

/// Waits for invalidations of the trace under Linux's deferred policy, against its strict one, as
/// both were replayed.
fn waits(verdict: &DeviceVerdict, systems: &[SystemRow]) -> Option<Gain> {
    let invalidations = |name: &str| {
        let row = systems.iter().find(|row| row.name == name)?;
        let mut of = row.per_trace.iter();
        let on = of.find(|on| on.trace == verdict.trace)?;
        Some(on.invalidations)
    };
    let (strict, lazy) = (
        invalidations("as Linux strict")?,
        invalidations("as Linux today")?,
    );
    let gone = Figure {
        value: strict.value - lazy.value,
        ..strict
    };
    (gone.value > 0.0).then(|| fewer(Less::Waits, gone, strict))
}

/// Time of lazy at a capture's rate, against that of strict.
fn lazy(costs: &Costs) -> Option<Gain> {
    let busy = |name| costs.mode(name)?.cpus_busy;
    let (strict, lazy) = (busy("strict")?, busy("lazy")?);
    let change = 100.0 * (lazy.value / strict.value - 1.0);
    let change = Figure::assumed(change, Unit::PercentChange);
    (strict.value > 0.0).then(|| Gain::of(Less::Time, change).leaving(lazy))
}
