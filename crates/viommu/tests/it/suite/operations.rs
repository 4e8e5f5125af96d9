// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Operations and units at random, for `differential`.

use ioatlas_dma::units::*;
use ioatlas_viommu::config::{Eviction, SetGeometry, UnitConfig};
use proptest::prelude::*;
use std::num::NonZeroU32;

/// One call, or one access.
#[derive(Clone, Debug)]
pub enum Op {
    Map {
        pages: u64,
        offset: u64,
        direction: Direction,
    },
    List {
        segments: Vec<u64>,
        direction: Direction,
    },
    MapAt {
        page: u64,
        pages: u64,
        direction: Direction,
    },
    Consistent {
        pages: u64,
    },
    Unmap(usize),
    /// At most so many, from one on, by one call.
    Batch(usize, usize),
    /// The same, but begun only.
    Start(usize, usize),
    /// One that was begun is over, or that is asked for.
    Finish(usize, bool),
    Raw(usize),
    /// Some page; the larger apertures are covered by what lies around the mappings.
    Access(u64, AccessKind),
    /// A page of a live mapping, or one beside it.
    AccessMapped(usize, u64, AccessKind),
    Flush,
    Tick(u64),
    Shrink,
}

fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![
        Just(Direction::ToDevice),
        Just(Direction::FromDevice),
        Just(Direction::Bidirectional),
    ]
}

fn kind() -> impl Strategy<Value = AccessKind> {
    prop_oneof![Just(AccessKind::Read), Just(AccessKind::Write)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..=8u64, 0..GRANULE, direction())
            .prop_map(|(pages, offset, direction)| Op::Map { pages, offset, direction }),
        2 => (prop::collection::vec(1..=3u64, 1..4), direction())
            .prop_map(|(segments, direction)| Op::List { segments, direction }),
        2 => (0..66u64, 1..=6u64, direction())
            .prop_map(|(page, pages, direction)| Op::MapAt { page, pages, direction }),
        1 => (1..=3u64).prop_map(|pages| Op::Consistent { pages }),
        4 => any::<usize>().prop_map(Op::Unmap),
        2 => (any::<usize>(), 2..9usize).prop_map(|(which, most)| Op::Batch(which, most)),
        1 => (any::<usize>(), 1..9usize).prop_map(|(which, most)| Op::Start(which, most)),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(which, asks)| Op::Finish(which, asks)),
        2 => any::<usize>().prop_map(Op::Raw),
        3 => (0..64u64, kind()).prop_map(|(page, kind)| Op::Access(page, kind)),
        9 => (any::<usize>(), 0..10u64, kind())
            .prop_map(|(which, page, kind)| Op::AccessMapped(which, page, kind)),
        1 => Just(Op::Flush),
        1 => (0..30u64).prop_map(Op::Tick),
        1 => Just(Op::Shrink),
    ]
}

/// What a unit may be like.
#[derive(Clone, Debug)]
pub struct Variant {
    entries: usize,
    ways: usize,
    walk: usize,
    prefetch: u32,
    evict_one_in: u32,
    page_selective: Option<u8>,
}

pub fn variant() -> impl Strategy<Value = Variant> {
    (
        prop_oneof![
            Just((0, 0)),
            Just((1, 1)),
            Just((4, 1)),
            Just((8, 8)),
            Just((64, 4))
        ],
        prop_oneof![Just(0usize), Just(1), Just(8)],
        prop_oneof![Just(0u32), Just(1), Just(5)],
        prop_oneof![Just(0u32), Just(1), Just(4)],
        prop_oneof![Just(None), Just(Some(0u8)), Just(Some(2)), Just(Some(6))],
    )
        .prop_map(
            |((entries, ways), walk, prefetch, evict_one_in, page_selective)| Variant {
                entries,
                ways,
                walk,
                prefetch,
                evict_one_in,
                page_selective,
            },
        )
}

impl Variant {
    pub fn apply(&self, config: &mut UnitConfig) {
        let caches = &mut config.caches;
        caches.iotlb = SetGeometry {
            entries: self.entries,
            ways: self.ways,
        };
        caches.walk.fill(self.walk);
        caches.prefetch = self.prefetch;
        let one_in = NonZeroU32::new(self.evict_one_in);
        caches.eviction = one_in.map(|one_in| Eviction { seed: 3, one_in });
        config.features.page_selective = self.page_selective;
    }
}

pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 1..80)
}
