// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Figures of many slices.

/// Median, 10th and 90th percentile. Of times in nanoseconds, or of ratios.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// 10th percentile of the slices.
    pub low: f64,
    /// Median of the slices.
    pub median: f64,
    /// 90th percentile of the slices.
    pub high: f64,
}

impl Spread {
    /// Of these slices; `None` if there are none.
    pub fn of(mut slices: Vec<f64>) -> Option<Self> {
        slices.sort_by(f64::total_cmp);
        let at = |tenths: usize| slices.get(slices.len() * tenths / 10).copied();
        Some(Self {
            low: at(1)?,
            median: at(5)?,
            high: at(9)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_slices() {
        let slices: Vec<f64> = (0..=20).rev().map(f64::from).collect();
        let spread = Spread {
            low: 2.0,
            median: 10.0,
            high: 18.0,
        };
        assert_eq!(Spread::of(slices), Some(spread));
        assert_eq!(Spread::of(Vec::new()), None);
    }
}
