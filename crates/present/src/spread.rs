// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One figure of many.

/// Median, 10th and 90th percentile. Each is one of the values: of two in the middle, the upper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// 10th percentile.
    pub low: f64,
    /// 50th percentile.
    pub median: f64,
    /// 90th percentile.
    pub high: f64,
}

impl Spread {
    /// Of these values; `None` if there are none.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let at = |tenths: usize| values.get(values.len() * tenths / 10).copied();
        Some(Self {
            low: at(1)?,
            median: at(5)?,
            high: at(9)?,
        })
    }
}

/// The median alone.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    Some(Spread::of(values.into_iter().collect())?.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_values() {
        let values: Vec<f64> = (0..=20).rev().map(f64::from).collect();
        let spread = Spread {
            low: 2.0,
            median: 10.0,
            high: 18.0,
        };
        assert_eq!(Spread::of(values), Some(spread));
        assert_eq!(Spread::of(Vec::new()), None);
        assert_eq!(median([4.0, 1.0, 3.0, 2.0]), Some(3.0));
    }
}
