// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Numbers of ours beside those that a document states, and what they are worth.

use ioatlas_present::rounded;
use serde::Serialize;

/// How our value comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Parameters were chosen by what is stated.
    Fitted,
    /// What is stated was not looked at when parameters were chosen.
    Predicted,
    /// What is stated goes in, or holds by how the model is built.
    Input,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Fitted => "fitted",
            Kind::Predicted => "predicted",
            Kind::Input => "input",
        }
    }

    /// Whether it counts for or against what is stated: what was fitted to it, or holds by
    /// construction, is shown and counts neither way.
    pub fn is_evidence(self) -> bool {
        match self {
            Kind::Predicted => true,
            Kind::Fitted | Kind::Input => false,
        }
    }
}

/// A number that a document states, or the ends of the range in which it says one is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Stated {
    pub low: f64,
    pub high: f64,
}

impl Stated {
    pub const fn number(number: f64) -> Self {
        Stated {
            low: number,
            high: number,
        }
    }

    pub const fn range(low: f64, high: f64) -> Self {
        Stated { low, high }
    }

    /// Whether ours is theirs, or within the range.
    pub fn has(self, ours: f64) -> bool {
        (self.low..=self.high).contains(&ours)
    }

    /// Ours over theirs, 1 within a range and else over its nearer end; none over 0.
    pub fn ratio(self, ours: f64) -> Option<f64> {
        let nearest = ours.max(self.low).min(self.high);
        (nearest != 0.0).then(|| ours / nearest)
    }

    /// As an axis takes it.
    pub fn ends(self) -> [f64; 2] {
        [self.low, self.high]
    }
}

/// A number of ours beside one that a document states.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Compared {
    /// Which, where there are several; else empty.
    pub of: String,
    pub ours: f64,
    pub theirs: Stated,
    /// Ours over theirs.
    pub ratio: Option<f64>,
}

impl Compared {
    pub fn new(of: impl Into<String>, ours: f64, theirs: Stated) -> Self {
        Compared {
            of: of.into(),
            ours,
            theirs,
            ratio: theirs.ratio(ours),
        }
    }

    /// The ratio as shown.
    pub fn text(&self) -> String {
        let ratio = rounded(self.ratio, 2);
        match self.of.as_str() {
            "" => ratio,
            of => format!("{of}: {ratio}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_to_what_is_nearest() {
        assert_eq!(Stated::number(2.0).ratio(1.0), Some(0.5));
        let range = Stated::range(90.0, 100.0);
        assert_eq!(range.ratio(45.0), Some(0.5));
        assert_eq!(range.ratio(95.0), Some(1.0));
        assert_eq!(range.ratio(150.0), Some(1.5));
        let falls = Stated::range(-100.0, -99.0);
        assert_eq!(falls.ratio(-49.5), Some(0.5));
        assert_eq!(Stated::number(0.0).ratio(1.0), None);
        assert_eq!(Compared::new("x", 1.0, Stated::number(0.0)).text(), "x: -");
    }
}
