// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Lists of whole pages from a device that is not trusted: what pools save the CPU against buffers
//! for one use, which map each segment by itself.
//!
//! BOUNCE'21 measured the load of a whole CPU, 2.28 and 2.17 % with blocks of 64 KiB on an internal
//! NVMe drive, so its ratio has everything else in it that the CPU did. Here are the times of map
//! and unmap alone, over one strict invalidation ([`Preset::Moderate`]), and the ratio with the
//! assumed rest of an operation added.

use super::{
    cost::Preset,
    load::{Block, Load, Way},
    model::{Assumed, THEIR_LOAD},
    policy::Policy,
    served::{Served, roomy},
};
use crate::{
    Contestant, Effort, Failure, Figure, Pattern, Sizes, Spread, Subject, alternate, figure::usual,
    platform::lend,
};
use ioatlas_dma::{
    dma_api::{DmaMapping, Lent},
    units::{PageCount, PhysRange},
};
use std::sync::Arc;

/// Bytes of a list: as BOUNCE'21 has it.
const BLOCK: Block = Block(64);
const DEPTH: usize = 64;

/// What lists cost with and without pools.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Lists {
    /// Nanoseconds of a list with buffers for one use.
    pub single_use_ns: f64,
    /// Nanoseconds of a list with pools.
    pub pooled_ns: f64,
    /// The second by the first, in the same rounds.
    pub ratio: Spread,
}

impl Lists {
    /// The ratio with what else the CPU does for an operation, as assumed of BOUNCE'21's machine.
    pub fn with_the_rest(&self) -> f64 {
        let rest = Assumed::BOUNCE21.other_ns;
        (rest + self.pooled_ns) / (rest + self.single_use_ns)
    }
    /// The ratio of loads that BOUNCE'21 measured.
    pub fn theirs() -> f64 {
        THEIR_LOAD.1 / THEIR_LOAD.0
    }
}

/// Each operation's buffer as a list of its pages.
struct OfPages<'s> {
    served: &'s Served,
    lists: Vec<Arc<[PhysRange]>>,
}

impl<'s> OfPages<'s> {
    fn new(served: &'s Served) -> Self {
        let pages = BLOCK.pages().0;
        let page = |nth: u64| served.buffer(nth, PageCount(1));
        // every second page first, so that no two segments could be one
        let order = |list: u64| {
            let even = (0..pages).step_by(2);
            let all = even.chain((1..pages).step_by(2));
            all.map(|nth| page(list * pages + nth)).collect()
        };
        let lists = (0..DEPTH as u64).map(order).collect();
        OfPages { served, lists }
    }
}

impl Subject for OfPages<'_> {
    type Token = DmaMapping<Lent<Arc<[PhysRange]>>>;
    type Hand = usize;

    fn hand(&self, thread: usize) -> usize {
        self.served.hand(thread);
        0
    }
    fn take(&self, next: &mut usize, _: PageCount) -> Result<Self::Token, Failure> {
        let list = self.lists[*next % DEPTH].clone();
        *next += 1;
        let mapped = self.served.client.map_sg(lend(list), Way::Read.direction());
        mapped.map_err(Failure::new)
    }
    fn give(&self, _: &mut usize, mapping: Self::Token) -> Result<(), Failure> {
        let unmapped = self.served.client.unmap(mapping);
        unmapped.map(drop).map_err(Failure::new)
    }
}

/// Measures both, on one thread.
///
/// # Errors
/// One of them failed.
pub fn lists(effort: Effort) -> Result<Lists, String> {
    let load = Load {
        preset: Preset::Moderate,
        block: BLOCK,
        direction: Way::Read,
        depth: DEPTH,
        threads: 1,
    };
    let serve = |policy| Served::new(load, policy, roomy()).map_err(|why| why.to_string());
    let served = [serve(Policy::SingleUse)?, serve(Policy::Untrusted)?];
    let subjects = served.each_ref().map(OfPages::new);
    let contestants = subjects
        .each_ref()
        .map(|subject| Contestant::new(subject, Pattern::Ring(DEPTH), Sizes::One, 1));
    let records = alternate(&contestants, effort);
    let mode = usual(&records);
    let figure = |nth: usize| Figure::of(&records[nth], 1, mode).map_err(|why| why.to_string());
    let (single_use, pooled) = (figure(0)?, figure(1)?);
    let few = || "too few rounds have both".to_owned();
    Ok(Lists {
        single_use_ns: single_use.ns.median,
        pooled_ns: pooled.ns.median,
        ratio: pooled.ratio(&single_use).ok_or_else(few)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_an_operation_hides_what_maps_cost() {
        let lists = Lists {
            single_use_ns: 5_000.0,
            pooled_ns: 1_000.0,
            ratio: Spread {
                low: 0.2,
                median: 0.2,
                high: 0.2,
            },
        };
        assert_eq!(lists.with_the_rest(), 0.6);
        assert!((Lists::theirs() - 0.9518).abs() < 1e-4);
    }
}
