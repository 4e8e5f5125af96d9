// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! An axis: its name with the unit, its ends, and where it has numbers.

use crate::svg::{Axis, round_up};

/// Steps between the ends of an axis, about.
const STEPS: f64 = 5.0;

/// How numbers become places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Linear,
    /// Each doubling as far as the last.
    Log2,
}

/// An axis: its name, its ends, and the numbers shown along it.
#[derive(Clone, Debug)]
pub struct Scale {
    /// What it counts, and in what.
    pub name: String,
    kind: Kind,
    from: f64,
    to: f64,
    /// Numbers shown, and how.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Scale {
    /// From `from` to a round number at or above `to`.
    pub fn linear(name: impl Into<String>, from: f64, to: f64) -> Self {
        let step = round_up((to - from).max(1e-9) / STEPS);
        let end = from + step * ((to - from) / step - 1e-9).ceil().max(1.0);
        let count = ((end - from) / step).round() as u32;
        let label = |value: f64| {
            let text = format!("{value:.3}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        };
        let ticks = (0..=count)
            .map(|nth| from + step * f64::from(nth))
            .map(|value| (value, label(value)));
        Scale {
            name: name.into(),
            kind: Kind::Linear,
            from,
            to: end,
            ticks: ticks.collect(),
        }
    }

    /// Powers of two from 2^`from` to 2^`to`.
    pub fn log2(name: impl Into<String>, from: u32, to: u32) -> Self {
        let ticks = (from..=to).map(|power| f64::from(power).exp2());
        Scale {
            name: name.into(),
            kind: Kind::Log2,
            from: f64::from(from),
            to: f64::from(to).max(f64::from(from) + 1.0),
            ticks: ticks.map(|value| (value, format!("{value}"))).collect(),
        }
    }

    /// Page numbers from `low` to `high`, shown in hexadecimal.
    pub fn pages(name: impl Into<String>, low: u64, high: u64) -> Self {
        let wanted = (high.saturating_sub(low) / STEPS as u64).max(1);
        let step = wanted.next_power_of_two();
        let first = low / step * step;
        let ticks = (0..)
            .map(|nth| first.saturating_add(nth * step))
            .take_while(|page| *page < high.saturating_add(step));
        let mut ticks: Vec<u64> = ticks.collect();
        if ticks.len() < 2 {
            ticks.push(first + step); // an axis has two ends
        }
        let last = ticks.last().copied().unwrap_or(high).max(high);
        Scale {
            name: name.into(),
            kind: Kind::Linear,
            from: first as f64,
            to: last as f64,
            ticks: ticks
                .into_iter()
                .map(|page| (page as f64, format!("{page:x}")))
                .collect(),
        }
    }

    /// No numbers: names stand there.
    pub fn names(name: impl Into<String>) -> Self {
        Scale {
            name: name.into(),
            kind: Kind::Linear,
            from: 0.0,
            to: 1.0,
            ticks: Vec::new(),
        }
    }

    /// What goes to [`Axis::at`].
    pub(super) fn place(&self, value: f64) -> f64 {
        match self.kind {
            Kind::Linear => value,
            Kind::Log2 => value.max(f64::MIN_POSITIVE).log2(),
        }
    }

    pub(super) fn axis(&self, start: f64, end: f64) -> Axis {
        Axis {
            from: self.from,
            to: self.to,
            start,
            end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale) -> Vec<&str> {
        scale
            .ticks
            .iter()
            .map(|(_, label)| label.as_str())
            .collect()
    }

    #[test]
    fn steps_are_round_and_the_end_is_not_far() {
        assert_eq!(
            labels(&Scale::linear("", 0.0, 90.0)),
            ["0", "20", "40", "60", "80", "100"]
        );
        assert_eq!(labels(&Scale::linear("", 0.0, 100.0)).last(), Some(&"100"));
        assert_eq!(labels(&Scale::linear("", 0.0, 0.0)).first(), Some(&"0"));
        assert_eq!(labels(&Scale::linear("", 0.0, 0.31)).last(), Some(&"0.4"));
    }

    #[test]
    fn pages_are_shown_as_the_trace_has_them() {
        let scale = Scale::pages("", 0xffe10, 0xfffff);
        assert_eq!(
            labels(&scale),
            ["ffe00", "ffe80", "fff00", "fff80", "100000"]
        );
        let one = Scale::pages("", 7, 7);
        assert!(one.to > one.from);
    }

    #[test]
    fn doublings_are_equally_far() {
        let scale = Scale::log2("", 0, 8);
        let axis = scale.axis(0.0, 80.0);
        let at = |value| axis.at(scale.place(value));
        assert!((at(2.0) - at(1.0) - 10.0).abs() < 1e-9);
        assert!((at(256.0) - 80.0).abs() < 1e-9);
    }
}
