// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Lists of operations, run against the naive model.

use crate::allocators::model::Model;
use crate::allocators::rig::*;
use ioatlas_dma::iova::*;
use ioatlas_dma::units::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Alloc { pages: u64 },
    AllocWithin { pages: u64, limits: Limits },
    Release { nth: usize },
    Reserve { first: u64, pages: u64 },
    Drain,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1u64..10).prop_map(|pages| Op::Alloc { pages }),
        1 => (10u64..80).prop_map(|pages| Op::Alloc { pages }),
        3 => (1u64..10, limits()).prop_map(|(pages, limits)| Op::AllocWithin { pages, limits }),
        6 => any::<usize>().prop_map(|nth| Op::Release { nth }),
        2 => (0u64..160, 0u64..20).prop_map(|(first, pages)| Op::Reserve { first, pages }),
        1 => Just(Op::Drain),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    limits_within(|| 0u64..160, 6)
}

/// Limits that end at such pages, aligned and bounded below that log2 of pages.
fn limits_within<S: Strategy<Value = u64>>(
    page: impl Fn() -> S,
    lg2_end: u32,
) -> impl Strategy<Value = Limits> {
    let end = || prop::option::of(page().prop_map(IovaPage));
    (end(), end(), 0..lg2_end, prop::option::of(0..lg2_end)).prop_map(
        |(end, prefer_end, align_lg2, boundary_lg2)| {
            Limits::NONE
                .end(end)
                .prefer_end(prefer_end)
                .align_lg2(align_lg2)
                .boundary_lg2(boundary_lg2)
        },
    )
}

pub fn agrees_with_a_naive_model(config: AllocatorConfig) {
    let steps = prop::collection::vec((op(), 0..CPUS, 0..CPUS), 1..200);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let run = runner.run(&(0u64..4, 1u64..150, steps), |(first, pages, steps)| {
        let rig = Rig::board(config, first, pages);
        differential(&rig, Model::new(first, pages), steps)
            .map_err(|what| TestCaseError::fail(format!("{what}: {rig}")))
    });
    run.unwrap();
}

/// The same with ranges around 512 MiB, in apertures of a few GiB that begin and end anywhere.
pub fn agrees_where_ranges_are_as_large_as_blocks(config: AllocatorConfig) {
    const BLOCK: u64 = 1 << 17;
    let near = |blocks: u64| {
        let near =
            (0..blocks, 0u64..4).prop_map(|(nth, off)| (nth * BLOCK + off).saturating_sub(2));
        prop_oneof![3 => near, 1 => 0..blocks * BLOCK]
    };
    let limits = limits_within(|| near(10), 20);
    let size = || prop_oneof![2 => 1u64..10, 6 => (12u32..20).prop_map(|lg2| 1 << lg2)];
    let op = prop_oneof![
        6 => size().prop_map(|pages| Op::Alloc { pages }),
        3 => (size(), limits).prop_map(|(pages, limits)| Op::AllocWithin { pages, limits }),
        6 => any::<usize>().prop_map(|nth| Op::Release { nth }),
        3 => (near(10), near(4)).prop_map(|(first, pages)| Op::Reserve { first, pages }),
    ];
    let steps = prop::collection::vec((op, 0..CPUS, 0..CPUS), 1..60);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let run = runner.run(&(near(3), near(9), steps), |(first, pages, steps)| {
        let rig = Rig::board(config, first, pages);
        differential(&rig, Model::new(first, pages), steps)
            .map_err(|what| TestCaseError::fail(format!("{what}: {rig}")))
    });
    run.unwrap();
}

/// Whether `got` is right, before it is entered. What is kept for reuse does not count as free to a
/// preference.
fn judge_within(
    model: &Model,
    pages: u64,
    limits: Limits,
    got: &Result<IovaAlloc, AllocError>,
    nothing_kept: bool,
) -> Result<(), String> {
    let allowed = |place| limits.allow(place);
    let wrong = |what: &str| {
        Err(format!(
            "{what}: {got:?} for {pages} pages within {limits:?}"
        ))
    };
    match got {
        Ok(alloc) if !limits.allow(alloc.range()) => wrong("not allowed"),
        Ok(alloc) if nothing_kept && !limits.prefer(alloc.range()) => {
            match model.has_room_where(pages, |place| limits.prefer(place)) {
                true => wrong("a preferred place is free"),
                false => Ok(()),
            }
        }
        Ok(_) => Ok(()),
        Err(_) if model.has_room_where(pages, allowed) => wrong("there is room"),
        Err(error) => {
            let ever = model.places(pages, allowed).next().is_some();
            let unlimited = model.places(pages, |_| true).next().is_some();
            match error.cause.is_final() == (unlimited && !ever) {
                true => Ok(()),
                false => wrong("another cause"),
            }
        }
    }
}

fn differential(
    rig: &Rig<Board>,
    mut model: Model,
    steps: Vec<(Op, usize, usize)>,
) -> Result<(), String> {
    let mut held: Vec<IovaAlloc> = Vec::new();
    for (op, cpu, origin) in steps {
        move_to(cpu);
        match op {
            Op::Alloc { pages } => match rig.alloc(pages) {
                Ok(alloc) => {
                    model.add_assigned(&alloc, pages)?;
                    held.push(alloc);
                }
                Err(error) if model.has_room(pages) => return Err(error.to_string()),
                Err(_) => {}
            },
            Op::AllocWithin { pages, limits } => {
                let nothing_kept = rig.usage().cached.0 == 0;
                let got = rig.alloc_within(pages, limits);
                judge_within(&model, pages, limits, &got, nothing_kept)?;
                if let Ok(alloc) = got {
                    model.add_assigned(&alloc, pages)?;
                    held.push(alloc);
                }
            }
            Op::Release { nth } if !held.is_empty() => {
                let alloc = held.swap_remove(nth % held.len());
                model.allocated.remove(&alloc.range().first.0);
                rig.free(origin, alloc);
            }
            Op::Release { .. } => {}
            Op::Reserve { first, pages } => {
                let wanted = range(first, pages);
                let inside = pages > 0 && model.aperture.contains(&wanted);
                match (rig.reserve(first, pages), model.in_the_way(wanted)) {
                    (Ok(alloc), None) if inside && alloc.range() == wanted => {
                        model.add(&alloc)?;
                        held.push(alloc);
                    }
                    (Err(FixedRangeError::Outside { .. }), _) if !inside => {}
                    (Err(FixedRangeError::Taken { taken, .. }), Some(_))
                        if inside
                            && taken.overlaps(&wanted)
                            && model.allocated.get(&taken.first.0) == Some(&taken.pages.0) => {}
                    (got, way) => {
                        return Err(format!("{wanted}: {got:?}, in the way: {way:?}"));
                    }
                }
            }
            Op::Drain => {
                let cached = rig.usage().cached.0;
                let drained = rig.drain();
                if drained != cached || rig.usage().cached.0 != 0 {
                    return Err(format!("{drained} pages drained of {cached}"));
                }
            }
        }
        rig.try_check(model.pages())?;
    }
    Ok(())
}
