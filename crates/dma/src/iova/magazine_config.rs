// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How large magazines of IOVA ranges are, class by class, and the caps that this follows from.
//!
//! # Theory
//!
//! What magazines can hold is bounded by how they are made, so no path counts. Each CPU has two
//! magazines of each class, and the depot of each class as many as there are bytes and pages left
//! for. Both caps are for each CPU, its share of the depots included; so a domain on more CPUs may
//! keep more, in proportion.
//!
//! Magazines of larger ranges are shorter, since each range is worth more pages and is asked for
//! less often: with M for one page, the class of 2^c pages has M / 2^c, but [`SHORTEST`] at least
//! where M is no less. By the default that is 128, 64, 32, 16, 16, 16.
//!
//! What does not fit is brought down in this order: a class whose two magazines exceed its part of
//! the pages gets shorter ones, and none where one range is too much; then all are halved, down to
//! 1, until two of each fit into half of the bytes; then the largest classes are given up. The
//! depots get what is left.

use super::BackingConfig;
use crate::{
    magazine::MagazineSizes,
    units::{ByteCount, PageCount, TimeNs},
};
use alloc::vec::Vec;
use core::mem::size_of;

/// Magazines are not made shorter than this for the size of their ranges alone.
const SHORTEST: usize = 16;
/// Bytes of a page number in a magazine.
const THING: usize = 8;
/// Bytes of what holds a CPU's pair of one class, a multiple of two cache lines.
const PAIR: usize = 128;
/// Bytes that the depot needs for a place, in its lists of full and of empty magazines.
const PLACE: usize = 2 * size_of::<Vec<u64>>();

/// Sizes of `Magazines`. Those beyond the limits named are brought
/// to the nearest one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MagazineConfig {
    /// Ranges of one page in a full magazine; 1 to 4096. Larger classes have fewer;
    /// see the module's theory.
    pub magazine_len: usize,
    /// Size classes: 1, 2, 4.. pages; 0 to 16.
    pub classes: usize,
    /// Ranges that a CPU takes from the tree the first time that it finds none; 1 to
    /// `magazine_len` + 1. It takes twice as many each time that it finds none again, up
    /// to a full magazine.
    pub run: usize,
    /// Magazines that the depot of one class keeps; 0 to 4096.
    pub depot_full_max: usize,
    /// Bytes of magazines for each CPU, its share of the depots included.
    pub cpu_bytes_max: ByteCount,
    /// Pages cached for each CPU, its share of the depots included.
    pub cpu_pages_max: PageCount,
    /// How long a magazine lies unused in the depot before its ranges go back to the tree, at
    /// the first tick then.
    pub idle: TimeNs,
    /// What they are refilled from.
    pub backing: BackingConfig,
}

setters!(const MagazineConfig {
    magazine_len: usize,
    classes: usize,
    run: usize,
    depot_full_max: usize,
    cpu_bytes_max: ByteCount,
    cpu_pages_max: PageCount,
    idle: TimeNs,
    backing: BackingConfig,
});

impl MagazineConfig {
    /// Up to 32 pages; 16 KiB and 64 MiB of IOVAs for each CPU; 100 ms.
    pub const DEFAULT: Self = MagazineConfig {
        magazine_len: 128,
        classes: 6,
        run: 8,
        depot_full_max: 32,
        cpu_bytes_max: ByteCount(16 << 10),
        cpu_pages_max: PageCount(1 << 14),
        idle: TimeNs(100_000_000),
        backing: BackingConfig::Rbtree,
    };

    pub(super) fn limited(self) -> Self {
        let magazine_len = self.magazine_len.clamp(1, 4096);
        MagazineConfig {
            magazine_len,
            classes: self.classes.min(16),
            run: self.run.clamp(1, magazine_len + 1),
            depot_full_max: self.depot_full_max.min(4096),
            ..self
        }
    }

    /// The sizes of each class, on a machine with `cpus` CPUs.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn class_sizes(&self, cpus: usize) -> Vec<MagazineSizes> {
        let config = self.limited();
        let mut lens = config.lens();
        let bytes = usize::try_from(self.cpu_bytes_max.0).unwrap_or(usize::MAX);
        let pairs = |lens: &[usize]| lens.iter().map(|len| PAIR + 2 * THING * len).sum::<usize>();
        while pairs(&lens) > bytes / 2 && lens.iter().any(|len| *len > 1) {
            lens.iter_mut().for_each(|len| *len = len.div_ceil(2));
        }
        while pairs(&lens) > bytes {
            lens.pop();
        }
        let bytes_left = (bytes - pairs(&lens)).saturating_mul(cpus);
        let each = lens.iter().map(|len| PLACE + THING * len).sum::<usize>();
        let pages_each = |pages: u64, (lg2, len)| pages.saturating_add((len as u64) << lg2);
        let pages_each = lens.iter().copied().enumerate().fold(0, pages_each);
        let pages = self.cpu_pages_max.0;
        let pages_left = pages.saturating_sub(2 * pages_each);
        let pages_left = pages_left.saturating_mul(cpus as u64);
        let by_pages = usize::try_from(pages_left / pages_each.max(1)).unwrap_or(usize::MAX);
        let depot_full_max = (bytes_left / each.max(1))
            .min(by_pages)
            .min(config.depot_full_max);
        let sizes = |magazine_len| MagazineSizes {
            magazine_len,
            depot_full_max,
        };
        lens.into_iter().map(sizes).collect()
    }

    /// How long the magazines of each class may be as far as pages go.
    fn lens(&self) -> Vec<usize> {
        // two magazines of each class, and as much for the depots
        let part = self.cpu_pages_max.0 / (4 * self.classes.max(1) as u64);
        let tapered = |lg2: usize| (self.magazine_len >> lg2).max(self.magazine_len.min(SHORTEST));
        (0..self.classes)
            .map(|lg2| tapered(lg2).min(usize::try_from(part >> lg2).unwrap_or(usize::MAX)))
            .take_while(|len| *len > 0)
            .collect()
    }
}

impl Default for MagazineConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(config: MagazineConfig, cpus: usize) -> Vec<usize> {
        let sizes = config.class_sizes(cpus);
        sizes.iter().map(|sizes| sizes.magazine_len).collect()
    }

    /// What all magazines of `config` can hold, in pages and in bytes, reckoned class by class.
    fn most(config: MagazineConfig, cpus: usize) -> (u64, usize) {
        let mut most = (0, 0);
        for (lg2, sizes) in config.class_sizes(cpus).into_iter().enumerate() {
            let magazines = 2 * cpus + sizes.depot_full_max;
            most.0 += (magazines * sizes.magazine_len) as u64 * (1 << lg2);
            most.1 +=
                magazines * sizes.magazine_len * THING + cpus * PAIR + sizes.depot_full_max * PLACE;
        }
        most
    }

    #[test]
    fn larger_ranges_have_shorter_magazines() {
        assert_eq!(lens(MagazineConfig::DEFAULT, 2), [128, 64, 32, 16, 16, 16]);
        let small = MagazineConfig {
            magazine_len: 5,
            ..MagazineConfig::DEFAULT
        };
        assert_eq!(lens(small, 2), [5; 6]);
    }

    #[test]
    fn caps_hold_on_any_machine() {
        let mut with_depot = 0;
        for bytes in [0, 200, 1 << 10, 5000, 16 << 10, 1 << 20, u64::MAX] {
            for pages in [0, 3, 100, 1 << 10, 1 << 14, 1 << 24, u64::MAX] {
                for (classes, magazine_len) in [(6, 128), (16, 128), (16, 1), (0, 9), (1, 4096)] {
                    let config = MagazineConfig {
                        magazine_len,
                        classes,
                        cpu_bytes_max: ByteCount(bytes),
                        cpu_pages_max: PageCount(pages),
                        ..MagazineConfig::DEFAULT
                    };
                    for cpus in [1, 2, 128] {
                        let most = most(config, cpus);
                        let cap = |each: u64| each.saturating_mul(cpus as u64);
                        assert!(most.0 <= cap(pages), "{config:?}: {most:?}");
                        assert!(most.1 as u64 <= cap(bytes), "{config:?}: {most:?}");
                        let sizes = config.class_sizes(cpus);
                        with_depot += sizes.iter().filter(|s| s.depot_full_max > 0).count();
                    }
                }
            }
        }
        assert!(with_depot > 100, "{with_depot}");
    }

    #[test]
    fn what_does_not_fit_is_brought_down() {
        let capped = |bytes, pages| MagazineConfig {
            classes: 16,
            cpu_bytes_max: ByteCount(bytes),
            cpu_pages_max: PageCount(pages),
            ..MagazineConfig::DEFAULT
        };
        // 2^14 pages / (4 x 16) are 256 for each class: one range of 2^8 pages
        let tapered = [128, 64, 32, 16, 16, 8, 4, 2, 1];
        assert_eq!(lens(capped(16 << 10, 1 << 14), 1), tapered);
        // and no depot, no class: everything goes straight to the tree
        assert_eq!(lens(capped(16 << 10, 63), 1), []);
        assert_eq!(lens(capped(PAIR as u64, u64::MAX), 1), []);
        assert_eq!(lens(capped(300, u64::MAX), 1), [1, 1]);
    }
}
