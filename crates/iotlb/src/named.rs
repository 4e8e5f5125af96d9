// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The strategies of WIOSCA'10, and their sums: `alh+mpre+8-prefetch`.

use crate::classify::Class;
use crate::strategy::{Filled, Mapped, Prefetch, Ranked, Strategy};
use std::fmt;
use std::str::FromStr;

/// A strategy that a sum is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Least recently used out first, no prefetch.
    Baseline,
    /// Evicts what is used again furthest in the future; no prefetch (section 4.8).
    OptimalEviction,
    /// Evicts streaming entries first (section 4.1).
    EvictionHint,
    /// Prefetches the pages beside the one accessed (section 4.6).
    AddressLocality,
    /// Prefetches the page on one side (section 4.6).
    SingleDirection,
    /// Prefetches the first page of a group when it is mapped (section 4.7).
    MapPrefetch,
    /// Moves each device's pages by the consistent pages of those before it (section 4.2).
    Offset,
    /// Eight entries in the prefetch buffer (section 4.8).
    EightPrefetch,
    /// Groups of mappings in descending order (section 4.6).
    Descending,
    /// Entries of 2 MiB (section 4.4).
    Superpage,
}

impl Part {
    /// Every strategy, in the order in which they act.
    pub const ALL: [Part; 10] = [
        Part::Baseline,
        Part::OptimalEviction,
        Part::EvictionHint,
        Part::AddressLocality,
        Part::SingleDirection,
        Part::MapPrefetch,
        Part::Offset,
        Part::EightPrefetch,
        Part::Descending,
        Part::Superpage,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Part::Baseline => "baseline",
            Part::OptimalEviction => "opt-ev",
            Part::EvictionHint => "eh",
            Part::AddressLocality => "alh",
            Part::SingleDirection => "sd-alh",
            Part::MapPrefetch => "mpre",
            Part::Offset => "of",
            Part::EightPrefetch => "8-prefetch",
            Part::Descending => "descending",
            Part::Superpage => "superpage",
        }
    }
}

/// A sum of strategies, as named.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Named {
    /// In the order given, no two alike.
    parts: Vec<Part>,
}

/// A name means no strategy, or no sum of strategies that can be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // its fields say it
pub enum StrategyError {
    /// No strategy has this name.
    #[error("unknown strategy `{name}`; there is: {}", names())]
    Unknown { name: String },
    /// A strategy is in the sum twice.
    #[error("strategy `{name}` is named twice in `{sum}`")]
    Twice { name: &'static str, sum: String },
    /// What cannot be added to optimal eviction.
    #[error("`opt-ev` combines with `of` and `descending` only, not with `{with}`")]
    NotWithOptimal {
        /// What it was to be combined with.
        with: &'static str,
    },
}

fn names() -> String {
    Part::ALL.map(Part::name).join(", ")
}

impl Default for Named {
    fn default() -> Self {
        Self {
            parts: vec![Part::Baseline],
        }
    }
}

impl Named {
    /// A sum of strategies; of none, the baseline.
    ///
    /// # Errors
    ///
    /// If one is there twice, or the optimal eviction with what it does not combine with.
    pub fn new(parts: &[Part]) -> Result<Self, StrategyError> {
        if parts.is_empty() {
            return Ok(Self::default());
        }
        let named = Self {
            parts: parts.to_vec(),
        };
        let twice = parts
            .iter()
            .enumerate()
            .find(|(at, part)| parts[..*at].contains(part));
        if let Some((_, part)) = twice {
            return Err(StrategyError::Twice {
                name: part.name(),
                sum: named.to_string(),
            });
        }
        let fits = [Part::OptimalEviction, Part::Offset, Part::Descending];
        match parts.iter().find(|part| !fits.contains(part)) {
            Some(part) if named.has(Part::OptimalEviction) => {
                Err(StrategyError::NotWithOptimal { with: part.name() })
            }
            _ => Ok(named),
        }
    }

    /// Its parts, in the order given.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Whether a strategy is part of it.
    #[must_use]
    pub fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    /// Whether it uses the prefetch buffer.
    #[must_use]
    pub fn prefetches(&self) -> bool {
        self.has(Part::AddressLocality)
            || self.has(Part::SingleDirection)
            || self.has(Part::MapPrefetch)
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, part) in self.parts.iter().enumerate() {
            f.write_str(if at > 0 { "+" } else { "" })?;
            f.write_str(part.name())?;
        }
        Ok(())
    }
}

impl FromStr for Named {
    type Err = StrategyError;

    fn from_str(sum: &str) -> Result<Self, Self::Err> {
        let part = |name: &str| {
            let known = Part::ALL.into_iter().find(|part| part.name() == name);
            known.ok_or_else(|| StrategyError::Unknown {
                name: crate::parse::quoted(name),
            })
        };
        let parts: Result<Vec<Part>, _> = sum.split('+').map(part).collect();
        Self::new(&parts?)
    }
}

/// Which way `sd-alh` prefetches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Toward {
    /// The page before: Linux hands out descending addresses.
    #[default]
    Down,
    /// The page after the one accessed.
    Up,
}

/// What the parts of a sum do that the engine asks while it runs; `HINTS` is whether `eh`
/// is among them, `PREFETCHES` whether one of the prefetching strategies is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts<const HINTS: bool, const PREFETCHES: bool> {
    both_sides: bool,
    one_side: Option<Toward>,
    at_map: bool,
}

impl<const HINTS: bool, const PREFETCHES: bool> Parts<HINTS, PREFETCHES> {
    pub fn new(named: &Named, toward: Toward) -> Self {
        Self {
            both_sides: named.has(Part::AddressLocality),
            one_side: named.has(Part::SingleDirection).then_some(toward),
            at_map: named.has(Part::MapPrefetch),
        }
    }
}

impl<const HINTS: bool, const PREFETCHES: bool> Strategy for Parts<HINTS, PREFETCHES> {
    const PREFETCHES: bool = PREFETCHES;
    const RANKS: bool = HINTS;
    const ASKS_ANY_PAGE: bool = false;

    #[inline]
    fn rank(&mut self, entry: &Ranked) -> u32 {
        u32::from(entry.class == Class::Consistent)
    }

    #[inline]
    fn after_fill(&mut self, _: &Filled, prefetch: &mut impl Prefetch) {
        if self.both_sides {
            prefetch.next();
            prefetch.previous();
        }
        match self.one_side {
            Some(Toward::Down) => prefetch.previous(),
            Some(Toward::Up) => prefetch.next(),
            None => {}
        }
    }

    #[inline]
    fn after_map(&mut self, mapped: &Mapped, prefetch: &mut impl Prefetch) {
        if self.at_map
            && let Some(first) = mapped.opens_group_at
        {
            prefetch.page(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_read_and_shown_in_the_order_given() {
        for sum in [
            "baseline",
            "alh+mpre+8-prefetch",
            "descending+sd-alh",
            "of+opt-ev",
        ] {
            assert_eq!(sum.parse::<Named>().unwrap().to_string(), sum);
        }
        let all = Part::ALL
            .into_iter()
            .filter(|&p| p != Part::OptimalEviction);
        assert!(Named::new(&all.collect::<Vec<_>>()).unwrap().prefetches());
        assert!(!"8-prefetch".parse::<Named>().unwrap().prefetches());
    }

    #[test]
    fn sums_that_cannot_be_had_are_refused() {
        let refused = |sum: &str| sum.parse::<Named>().expect_err(sum);
        for sum in ["", "+", "alh+", "ALH", "alh mpre"] {
            assert!(
                matches!(refused(sum), StrategyError::Unknown { .. }),
                "{sum}"
            );
        }
        assert!(matches!(
            refused("alh+of+alh"),
            StrategyError::Twice { name: "alh", .. }
        ));
        for with in [
            "baseline",
            "eh",
            "alh",
            "sd-alh",
            "mpre",
            "8-prefetch",
            "superpage",
        ] {
            let expected = StrategyError::NotWithOptimal { with };
            assert_eq!(refused(&format!("of+{with}+opt-ev")), expected);
        }
    }
}
