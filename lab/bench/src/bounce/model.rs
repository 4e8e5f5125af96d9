// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a machine makes of the costs: BOUNCE'21's laptop, and what it predicts.
//!
//! # Theory
//!
//! One CPU issues operations and one device carries them out, many at a time (64 there), so that
//! the slower of the two sets the pace: an operation takes
//! `max(other + map + unmap + copy, bytes / rate)`. `other` is what the CPU does for each operation
//! besides: block layer, system call, interrupt. Only quotients of these times matter to ratios.
//!
//! BOUNCE'21 gives results for four sizes and none of these costs. So: `other`, the device's rate,
//! the cost of a copied byte, and how a base compares with a page are [`Assumed`], each with its
//! reason; the cost of a request is *fitted*, on 2.8 times at 4 KiB and on nothing else; the other
//! three ratios, and all times in map and unmap, are predictions. [`range`] says how far they move
//! if what is assumed is wrong.
//!
//! Not modelled: waiting of the device for the CPU and the reverse where both take about as long,
//! segments of several pages, caches that a copy displaces, a device whose rate depends on the
//! size.

use super::cost::{BigLock, Charge, Cost};
use ioatlas_dma::units::{ByteCount, GRANULE, PageCount};

/// A size of BOUNCE'21's measurement, and its results: sequential reads, fio, 64 in flight.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Theirs {
    /// Bytes of an operation.
    pub block: ByteCount,
    /// Throughput with bounce buffers by that without.
    pub ratio: f64,
    /// Change of the time in unmap per GB, in percent.
    pub unmap_change: f64,
}

/// All of them, the smallest first.
pub const THEIRS: [Theirs; 4] = [
    theirs(4, 2.8, -97.0),
    theirs(16, 4.7, -94.0),
    theirs(64, 3.6, -90.0),
    theirs(128, 3.6, -87.0),
];

/// Change of the time in map per GB, at most, in percent: "more than 99 %".
pub const THEIR_MAP_CHANGE: f64 = -99.0;
/// Load of a CPU, percent, with an untrusted internal NVMe drive and blocks of 64 KiB:
/// single-use bounce buffers, pools.
pub const THEIR_LOAD: (f64, f64) = (2.28, 2.17);

const fn theirs(kib: u64, ratio: f64, unmap_change: f64) -> Theirs {
    Theirs {
        block: ByteCount(kib << 10),
        ratio,
        unmap_change,
    }
}

/// What is assumed of the laptop, since the document does not say.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Assumed {
    /// CPU time of an operation outside of map, unmap and copies, in nanoseconds.
    pub other_ns: f64,
    /// What the device moves, in bytes a nanosecond (GB/s).
    pub rate: f64,
    /// Nanoseconds to copy a byte.
    pub copy_ns: f64,
    /// Nanoseconds to take a slot and to return it, together.
    pub slot_ns: f64,
    /// The base cost of a request by that of a page of it.
    pub base_by_page: f64,
}

impl Assumed {
    /// The values used in all predictions.
    ///
    /// * other: 5 us, 200,000 operations a second: one thread of a guest whose interrupts
    ///   need exits. A guess.
    /// * rate: 3.5 GB/s, what PCIe 3.0 x4 carries at most (3.94 GB/s less headers);
    ///   this CPU has no faster port. The drive is not named.
    /// * copy: 0.119 ns a byte: 64 KiB, neither side in a cache, in 7.8 us, measured on another
    ///   machine (Zen 4, virtual).
    /// * slot: 40 ns, what this project's pools were designed for.
    /// * base by page: 1: a request, with its exit, costs what a page of it does, with its pinning
    ///   and its invalidation in the host. A guess.
    pub const BOUNCE21: Self = Self {
        other_ns: 5_000.0,
        rate: 3.5,
        copy_ns: 0.119,
        slot_ns: 40.0,
        base_by_page: 1.0,
    };

    /// Other values that would be as good: guesses four times less or more, half or
    /// twice, a slower drive.
    fn others() -> impl Iterator<Item = Self> {
        let all = [0.25, 1.0, 4.0].into_iter().flat_map(|base_by_page| {
            [2_500.0, 5_000.0, 10_000.0].map(move |other_ns| (base_by_page, other_ns))
        });
        all.flat_map(|(base_by_page, other_ns)| {
            [1.8, 2.5, 3.5].map(|rate| Self {
                other_ns,
                rate,
                base_by_page,
                ..Self::BOUNCE21
            })
        })
    }
}

/// What holds an operation up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// The CPU that issues it.
    Cpu,
    /// The device, which moves only so much.
    Device,
}

impl Bound {
    /// The word in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Bound::Cpu => "cpu",
            Bound::Device => "device",
        }
    }
}

/// A machine with costs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Machine {
    /// What map and unmap cost when they are direct.
    pub charge: Charge,
    /// What else an operation costs, as assumed.
    pub assumed: Assumed,
}

/// Granules of a block, which begins at one.
pub fn pages(block: ByteCount) -> PageCount {
    PageCount(block.0.div_ceil(GRANULE))
}

impl Machine {
    /// BOUNCE'21's laptop under [`Assumed::BOUNCE21`].
    pub fn bounce21() -> Self {
        Self::fitted(Assumed::BOUNCE21)
    }

    /// With map and unmap that cost the same, so much that bouncing is [`THEIRS`]`[0].ratio` times
    /// as fast at its size.
    pub fn fitted(assumed: Assumed) -> Self {
        let Theirs { block, ratio, .. } = THEIRS[0];
        let free = Machine {
            charge: Charge::default(),
            assumed,
        };
        let pair = ratio * free.bounced_ns(block).0 - assumed.other_ns;
        let request = pair / 2.0;
        let page_ns = request / (assumed.base_by_page + pages(block).0 as f64);
        let cost = Cost {
            base_ns: assumed.base_by_page * page_ns,
            page_ns,
        };
        Machine {
            charge: Charge {
                map: cost,
                unmap: cost,
                lock: BigLock::Held,
            },
            assumed,
        }
    }

    /// An operation that takes the CPU `own` nanoseconds in map, unmap and copies: its nanoseconds
    /// at full load, and what sets them.
    pub fn paced_ns(&self, block: ByteCount, own_ns: f64) -> (f64, Bound) {
        let cpu = self.assumed.other_ns + own_ns;
        let device = block.0 as f64 / self.assumed.rate;
        match cpu >= device {
            true => (cpu, Bound::Cpu),
            false => (device, Bound::Device),
        }
    }

    /// Of a direct mapping.
    pub fn direct_ns(&self, block: ByteCount) -> (f64, Bound) {
        self.paced_ns(block, self.charge.pair_ns(pages(block)))
    }

    /// Of one through a slot that is mapped already, with one copy.
    pub fn bounced_ns(&self, block: ByteCount) -> (f64, Bound) {
        self.paced_ns(block, self.assumed.slot_ns + self.copy_ns(block))
    }

    fn copy_ns(&self, block: ByteCount) -> f64 {
        block.0 as f64 * self.assumed.copy_ns
    }

    /// The size from which direct mapping takes the CPU less time, or `None` where no size does.
    pub fn crossover(&self) -> Option<ByteCount> {
        crossover(
            &self.charge,
            self.assumed.copy_ns,
            self.assumed.slot_ns,
            ByteCount(1 << 30),
        )
    }

    /// What it predicts for a read of this size.
    pub fn predicted(&self, theirs: Theirs) -> Prediction {
        let (direct, bounced) = (self.direct_ns(theirs.block), self.bounced_ns(theirs.block));
        let pages = pages(theirs.block);
        let half = self.assumed.slot_ns / 2.0;
        let change = |now: f64, before: f64| (now / before - 1.0) * 100.0;
        Prediction {
            theirs,
            ratio: direct.0 / bounced.0,
            direct: direct.1,
            bounced: bounced.1,
            unmap_change: change(
                half + self.copy_ns(theirs.block),
                self.charge.unmap.ns(pages),
            ),
            map_change: change(half, self.charge.map.ns(pages)),
            direct_ns: direct.0,
        }
    }
}

/// The size from which a map and its unmap cost less than a copy and a slot, looked for in whole
/// granules up to `most`; `None` where bouncing is cheaper at all of them. Of sizes of which only
/// some are dearer, the first.
pub fn crossover(
    charge: &Charge,
    copy_ns: f64,
    slot_ns: f64,
    most: ByteCount,
) -> Option<ByteCount> {
    let (base, page) = (
        charge.map.base_ns + charge.unmap.base_ns,
        charge.map.page_ns + charge.unmap.page_ns,
    );
    let copy = copy_ns * GRANULE as f64;
    let direct_wins = |pages: u64| base + page * pages as f64 <= slot_ns + copy * pages as f64;
    let most = most.0 / GRANULE;
    if direct_wins(1) {
        return Some(ByteCount(GRANULE));
    }
    // bouncing wins at one page; its lead changes by the same with each page
    let gain = copy - page;
    if gain <= 0.0 {
        return None;
    }
    let pages = ((base - slot_ns) / gain).ceil().max(1.0) as u64;
    (pages <= most).then_some(ByteCount(pages * GRANULE))
}

/// What is predicted of a size, beside what was measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prediction {
    /// What the document has measured of it.
    pub theirs: Theirs,
    /// Throughput with bounce buffers by that without.
    pub ratio: f64,
    /// What holds a direct operation up.
    pub direct: Bound,
    /// And a bounced one.
    pub bounced: Bound,
    /// Change of the time in unmap per GB, in percent.
    pub unmap_change: f64,
    /// The same of map.
    pub map_change: f64,
    /// Nanoseconds of a direct operation.
    pub direct_ns: f64,
}

/// Differences up to this, in percent, need no reason.
pub const TOLERATED: f64 = 15.0;

impl Prediction {
    /// How far the ratio is from theirs, in percent of theirs.
    pub fn difference(&self) -> f64 {
        (self.ratio / self.theirs.ratio - 1.0) * 100.0
    }
    /// The same of the change of unmap.
    pub fn unmap_difference(&self) -> f64 {
        (self.unmap_change / self.theirs.unmap_change - 1.0) * 100.0
    }
    /// Why the ratio is far from theirs, if it is: what would have to be so for theirs.
    pub fn reason(&self) -> Option<String> {
        if self.difference().abs() <= TOLERATED {
            return None;
        }
        let wanted = self.direct_ns / self.theirs.ratio;
        Some(match self.bounced {
            Bound::Device => format!(
                "the device sets the pace, assumed as fast as its link: one of {:.1} GB/s would give theirs",
                self.theirs.block.0 as f64 / wanted
            ),
            Bound::Cpu => format!(
                "the CPU sets the pace: theirs needs a direct operation of {:.1} us and not {:.1}, so requests cost other amounts for each page than assumed",
                self.direct_ns * self.theirs.ratio / self.ratio / 1e3,
                self.direct_ns / 1e3
            ),
        })
    }
}

/// The least and the largest ratio predicted for a size, over other assumptions, each fitted anew.
pub fn range(theirs: Theirs) -> (f64, f64) {
    let ratios = Assumed::others().map(|assumed| Machine::fitted(assumed).predicted(theirs).ratio);
    ratios.fold((f64::INFINITY, 0.0), |(low, high), ratio| {
        (low.min(ratio), high.max(ratio))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_that_was_fitted_is_met_and_nothing_else_need_be() {
        for assumed in Assumed::others() {
            let machine = Machine::fitted(assumed);
            let fitted = machine.predicted(THEIRS[0]);
            assert!(
                (fitted.ratio - THEIRS[0].ratio).abs() < 1e-9,
                "{assumed:?}: {fitted:?}"
            );
            assert_eq!(fitted.reason(), None);
            assert!(machine.charge.map.base_ns > 0.0 && machine.charge.map.page_ns > 0.0);
        }
    }

    #[test]
    fn an_operation_takes_as_long_as_the_slower_of_cpu_and_device() {
        let machine = Machine {
            charge: Charge {
                map: Cost {
                    base_ns: 100.0,
                    page_ns: 10.0,
                },
                unmap: Cost {
                    base_ns: 200.0,
                    page_ns: 20.0,
                },
                lock: BigLock::None,
            },
            assumed: Assumed {
                other_ns: 1_000.0,
                rate: 2.0,
                copy_ns: 0.25,
                slot_ns: 76.0,
                base_by_page: 1.0,
            },
        };
        let block = |kib: u64| ByteCount(kib << 10);
        // 4 KiB: 1,000 + 300 + 30 against 2,048; 1,000 + 76 + 1,024 against it
        assert_eq!(machine.direct_ns(block(4)), (2_048.0, Bound::Device));
        assert_eq!(machine.bounced_ns(block(4)), (2_100.0, Bound::Cpu));
        assert_eq!(machine.direct_ns(ByteCount(100)), (1_330.0, Bound::Cpu));
        let predicted = machine.predicted(theirs(4, 1.0, -50.0));
        assert_eq!(predicted.ratio, 2_048.0 / 2_100.0);
        // 38 + 1,024 in unmap instead of 220; 38 in map instead of 110
        assert!((predicted.unmap_change - (1_062.0 / 220.0 - 1.0) * 100.0).abs() < 1e-9);
        assert!((predicted.map_change - (38.0 / 110.0 - 1.0) * 100.0).abs() < 1e-9);
        assert!(predicted.difference() < 0.0 && predicted.reason().is_none());
    }

    #[test]
    fn the_crossover_is_the_first_size_at_which_direct_mapping_costs_no_more() {
        let charge = |base_ns, page_ns| Charge {
            map: Cost { base_ns, page_ns },
            ..Charge::default()
        };
        let copy = 500.0 / GRANULE as f64;
        let most = ByteCount(1 << 30);
        let of = |charge: Charge| crossover(&charge, copy, 40.0, most).map(|size| size.0 / GRANULE);
        assert_eq!(of(charge(0.0, 0.0)), Some(1));
        assert_eq!(of(charge(540.0, 0.0)), Some(1));
        assert_eq!(of(charge(541.0, 0.0)), Some(2));
        assert_eq!(of(charge(2_040.0, 250.0)), Some(8));
        assert_eq!(of(charge(2_040.0, 500.0)), None, "never catches up");
        assert_eq!(of(charge(1e12, 0.0)), None, "beyond the largest size");
        // by trying
        let dear = charge(9_000.0, 111.0);
        let tried = (1..1000)
            .find(|n| dear.pair_ns(PageCount(*n)) <= 40.0 + *n as f64 * copy * GRANULE as f64);
        assert_eq!(of(dear), tried);
    }

    #[test]
    fn differences_have_reasons_that_would_make_them_vanish() {
        let machine = Machine::bounce21();
        for theirs in THEIRS {
            let predicted = machine.predicted(theirs);
            let large = predicted.difference().abs() > TOLERATED;
            assert_eq!(predicted.reason().is_some(), large, "{predicted:?}");
            if large && predicted.bounced == Bound::Device {
                let rate = theirs.block.0 as f64 * theirs.ratio / predicted.direct_ns;
                let slower = Machine {
                    assumed: Assumed {
                        rate,
                        ..machine.assumed
                    },
                    ..machine
                };
                let again = slower.predicted(theirs);
                assert!((again.ratio - theirs.ratio).abs() < 1e-9, "{again:?}");
            }
        }
    }

    #[test]
    fn the_range_holds_what_is_predicted() {
        for theirs in THEIRS {
            let (low, high) = range(theirs);
            let ratio = Machine::bounce21().predicted(theirs).ratio;
            assert!(low <= ratio && ratio <= high, "{low} {ratio} {high}");
        }
    }
}
