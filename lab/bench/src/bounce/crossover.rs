// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! From which size on direct mapping wins, read off measured ratios.

use super::load::Block;

/// Throughput when bounced by that when mapped directly, by size, ascending.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Ratios(pub Vec<(Block, f64)>);

impl Ratios {
    /// Where the ratio falls to 1 for the first time, in KiB: between two sizes on a straight line
    /// over the logarithm of the size. `None` where it never does.
    pub fn crossover_kib(&self) -> Option<f64> {
        let mut before: Option<(f64, f64)> = None;
        for (block, ratio) in &self.0 {
            let at = (block.0 as f64).log2();
            if *ratio <= 1.0 {
                let Some((lg2, above)) = before else {
                    return Some(at.exp2());
                };
                let part = (above - 1.0) / (above - ratio);
                return Some((lg2 + part * (at - lg2)).exp2());
            }
            before = Some((at, *ratio));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crossover_lies_between_the_sizes_around_it() {
        let of = |ratios: &[f64]| {
            let sizes = (2..).map(|lg2| Block(1 << lg2));
            Ratios(sizes.zip(ratios.iter().copied()).collect()).crossover_kib()
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[3.0, 2.0, 1.1]), None);
        assert_eq!(of(&[0.9, 0.5]), Some(4.0), "at once");
        assert_eq!(of(&[2.0, 1.0]), Some(8.0));
        let middle = of(&[2.0, 1.5, 0.5]).unwrap();
        assert!((middle - 8.0 * 2f64.sqrt()).abs() < 1e-9, "{middle}");
        assert_eq!(of(&[2.0, 1.0, 3.0, 0.5]), Some(8.0), "the first");
    }
}
