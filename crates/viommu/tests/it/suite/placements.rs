// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Every placement of the DMA API, a pool that is soon exhausted, and memory to map.

use ioatlas_dma::{
    dma_api::*,
    platform::{FreshFrame, Platform},
    units::*,
};
use std::cell::Cell;

pub const PLACEMENTS: [Placement; 6] = [
    Placement::Always,
    Placement::Untrusted {
        whole_up_to: ByteCount(4096),
    },
    Placement::SingleUse,
    Placement::Never,
    Placement::Below(ByteCount(8192)),
    Placement::Adaptive,
];

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// A clock that goes on by the same each time it is read, so that what is learned by it depends on
/// no speed.
fn now() -> TimeNs {
    NOW.set(NOW.get() + 100);
    TimeNs(NOW.get())
}

/// Few slots, so that each step of the fallback chain is taken.
pub fn tight(growth: Growth) -> DmaConfig {
    let class = |(pages_lg2, slots)| ClassConfig { pages_lg2, slots };
    DmaConfig::default()
        .pool(
            PoolConfig::default()
                .classes([(0, 2), (1, 2), (2, 1)].map(class).into())
                .growth(growth)
                .idle_ns(100_000_000),
        )
        .clock(Clock(now))
}

pub const ON_DEMAND: Growth = Growth::OnDemand {
    chunks_max: 1,
    single_use: SingleUse::Allowed,
};

/// So many frames that adjoin.
pub fn adjoining(p: &impl Platform, pages: usize) -> Vec<FreshFrame> {
    let mut taken: Vec<_> = (0..4 * pages).map_while(|_| p.frame_alloc()).collect();
    taken.sort_by_key(|frame| frame.page());
    let follows = |run: &[FreshFrame]| {
        let last = &run[run.len() - 1];
        last.page().0 - run[0].page().0 == pages as u64 - 1
    };
    let at = taken.windows(pages).position(follows);
    let at = at.expect("contiguous frames in a fresh memory");
    let rest = taken.split_off(at + pages);
    let run = taken.split_off(at);
    let others = taken.into_iter().chain(rest);
    others.for_each(|frame| p.frame_free(crate::BY, frame));
    run
}
