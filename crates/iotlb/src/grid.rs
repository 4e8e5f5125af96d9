// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The points of a sweep: `entries=8..256,ways=1..16,strategy=baseline|alh,page=4k|2m`.
//!
//! Dimensions are separated by commas, the values of one by `|`. `a..b` is a, 2a, 4a, and
//! so on up to b; `a..b:s` goes in steps of s. A dimension that is not named has the one
//! value that the options give. Points that no IOTLB can have (more ways than entries, not
//! a multiple) or no strategy (a sum that does not combine with superpages) are skipped and
//! counted.

use crate::geometry::Geometry;
use crate::named::{Named, Part};
use crate::parse::quoted;
use crate::setup::{BufferSize, Setup};
use crate::working_set::PageSize;
use std::str::FromStr;

/// Most points of a sweep: an hour or so of a trace of average length.
const MAX_POINTS: usize = 1 << 20;

/// What is to be swept over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grid {
    entries: Option<Vec<usize>>,
    ways: Option<Vec<usize>>,
    buffers: Option<Vec<BufferSize>>,
    strategies: Option<Vec<Named>>,
    pages: Option<Vec<PageSize>>,
}

/// A sweep cannot be made of this text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // its fields say it
pub enum GridError {
    /// A part is not of the form `name=values`.
    #[error("`{0}` is not of the form entries=8..256")]
    Form(String),
    /// No dimension has this name.
    #[error("unknown dimension `{0}`; there is: entries, ways, prefetch, strategy, page")]
    Unknown(String),
    /// A dimension is given twice.
    #[error("dimension `{0}` is given twice")]
    Twice(String),
    /// A value makes no sense.
    #[error("{dimension}: {reason}")]
    Value {
        dimension: &'static str,
        reason: String,
    },
    /// More points than can be done.
    #[error("{points} points are more than the {MAX_POINTS} that a sweep can have")]
    TooMany { points: usize },
}

/// A point of a sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// What to simulate; for superpages, `superpage` is part of its strategy.
    pub setup: Setup,
    /// The strategy as swept over, without the page size.
    pub strategy: Named,
    /// The page size, 4 KiB or superpages.
    pub page: PageSize,
}

impl FromStr for Grid {
    type Err = GridError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut grid = Self::default();
        for part in text.split(',') {
            let (name, values) = part
                .split_once('=')
                .ok_or_else(|| GridError::Form(quoted(part)))?;
            let given = match name {
                "entries" => grid.entries.replace(numbers("entries", values)?).is_some(),
                "ways" => grid.ways.replace(numbers("ways", values)?).is_some(),
                "prefetch" => {
                    let sizes = numbers("prefetch", values)?
                        .into_iter()
                        .map(BufferSize::new);
                    let sizes: Result<Vec<_>, _> = sizes.collect();
                    let sizes = sizes.map_err(|error| GridError::Value {
                        dimension: "prefetch",
                        reason: error.to_string(),
                    })?;
                    grid.buffers.replace(sizes).is_some()
                }
                "strategy" => {
                    let strategies = each("strategy", values, str::parse::<Named>)?;
                    grid.strategies.replace(strategies).is_some()
                }
                "page" => {
                    let pages = each("page", values, str::parse::<PageSize>)?;
                    grid.pages.replace(pages).is_some()
                }
                _ => return Err(GridError::Unknown(quoted(name))),
            };
            if given {
                return Err(GridError::Twice(name.into()));
            }
        }
        Ok(grid)
    }
}

fn each<T, E: ToString>(
    dimension: &'static str,
    values: &str,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<Vec<T>, GridError> {
    let value = |text| {
        read(text).map_err(|error| GridError::Value {
            dimension,
            reason: error.to_string(),
        })
    };
    values.split('|').map(value).collect()
}

fn numbers(dimension: &'static str, values: &str) -> Result<Vec<usize>, GridError> {
    let mut numbers: Vec<usize> = each(dimension, values, range)?.concat();
    if numbers.len() > MAX_POINTS {
        return Err(GridError::TooMany {
            points: numbers.len(),
        });
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// `8`, `8..256` or `8..64:8`.
fn range(text: &str) -> Result<Vec<usize>, String> {
    let bad = || format!("`{}` is no number or range", quoted(text));
    let number = |digits: &str| digits.parse::<usize>().map_err(|_| bad());
    let Some((first, rest)) = text.split_once("..") else {
        return Ok(vec![number(text)?]);
    };
    let (last, step) = match rest.split_once(':') {
        Some((last, step)) => (last, Some(number(step)?)),
        None => (rest, None),
    };
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(format!("`{}` goes down", quoted(text)));
    }
    match step {
        Some(0) => Err(format!("`{}` has steps of 0", quoted(text))),
        Some(step) => Ok((first..=last).step_by(step).take(MAX_POINTS + 1).collect()),
        None if first == 0 => Err(format!(
            "`{}` doubles 0; give a step, as in 0..8:1",
            quoted(text)
        )),
        None => {
            let doubled = std::iter::successors(Some(first), |number| number.checked_mul(2));
            Ok(doubled.take_while(|&number| number <= last).collect())
        }
    }
}

impl Grid {
    /// The points, and how many were skipped. What the grid does not name is as in
    /// `setups`, of which there is at least one and which differ in their strategies only.
    ///
    /// # Errors
    ///
    /// If there are too many.
    pub fn points(&self, setups: &[Setup]) -> Result<(Vec<Point>, usize), GridError> {
        let Some(reference) = setups.first() else {
            return Ok((Vec::new(), 0));
        };
        let of = |setup: &Setup| setup.strategy.clone();
        let strategies = self.strategies.clone();
        let strategies = strategies.unwrap_or_else(|| setups.iter().map(of).collect());
        let one = |value| vec![value];
        let pages = self.pages.clone().unwrap_or_else(|| one(PageSize::Page));
        let entries = self.entries.clone();
        let entries = entries.unwrap_or_else(|| vec![reference.geometry.entries()]);
        let ways = self.ways.clone();
        let ways = ways.unwrap_or_else(|| vec![reference.geometry.ways()]);
        let buffers = self.buffers.clone();
        let buffers = buffers.unwrap_or_else(|| vec![reference.buffer]);
        let sizes = [pages.len(), entries.len(), ways.len(), buffers.len()];
        let count = |count: usize, size: &usize| count.saturating_mul(*size);
        let all = sizes.iter().fold(strategies.len(), count);
        if all > MAX_POINTS {
            return Err(GridError::TooMany { points: all });
        }
        let mut points = Vec::new();
        for strategy in &strategies {
            for &page in &pages {
                let Some(sum) = with_page(strategy, page) else {
                    continue;
                };
                for &buffer in &buffers {
                    for &entries in &entries {
                        for &ways in &ways {
                            let Ok(geometry) = Geometry::new(entries, ways) else {
                                continue;
                            };
                            let setup = Setup {
                                strategy: sum.clone(),
                                geometry,
                                buffer,
                                ..reference.clone()
                            };
                            points.push(Point {
                                setup,
                                strategy: strategy.clone(),
                                page,
                            });
                        }
                    }
                }
            }
        }
        let skipped = all - points.len();
        Ok((points, skipped))
    }
}

/// The strategy with pages of that size; `None` if there is none, or it says otherwise.
fn with_page(strategy: &Named, page: PageSize) -> Option<Named> {
    if page == PageSize::Page {
        return Some(strategy.clone());
    }
    let mut parts = strategy.parts().to_vec();
    parts.push(Part::Superpage);
    Named::new(&parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(text: &str) -> (Vec<Point>, usize) {
        let grid: Grid = text.parse().unwrap();
        grid.points(&[Setup::default()]).unwrap()
    }

    #[test]
    fn ranges_double_or_go_in_steps() {
        assert_eq!(range("8..256").unwrap(), [8, 16, 32, 64, 128, 256]);
        assert_eq!(range("3..20").unwrap(), [3, 6, 12]);
        assert_eq!(range("0..6:2").unwrap(), [0, 2, 4, 6]);
        assert_eq!(range("5").unwrap(), [5]);
        for bad in [
            "", "a", "1..", "..1", "2..1", "0..8", "1..8:0", "1..8:", "-1", "1...2",
        ] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn impossible_points_are_skipped_and_counted() {
        let (points, skipped) = points("entries=8|12,ways=1..16,strategy=alh|opt-ev,page=4k|2m");
        // 8: 1 2 4 8; 12: 1 2 4; and opt-ev has no superpages.
        assert_eq!((points.len(), skipped), (7 * 3, 40 - 21));
        let sums: Vec<String> = points
            .iter()
            .map(|p| p.setup.strategy.to_string())
            .collect();
        assert_eq!(
            (sums[0].as_str(), sums[7].as_str()),
            ("alh", "alh+superpage")
        );
        assert_eq!(points[7].strategy.to_string(), "alh");
    }

    #[test]
    fn what_is_not_named_is_as_the_options_say() {
        let (points, skipped) = points("prefetch=0..8:4");
        assert_eq!((points.len(), skipped), (3, 0));
        assert_eq!(points[2].setup.buffer_entries(), 8);
        assert_eq!(points[2].setup.geometry, Geometry::default());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let refused = |text: &str| text.parse::<Grid>().expect_err(text).to_string();
        assert!(refused("entries").contains("`entries`"));
        assert!(refused("size=3").contains("`size`"));
        assert!(refused("ways=1,ways=2").contains("twice"));
        assert!(refused("strategy=alh|foo").contains("`foo`"));
        assert!(refused("page=1g").contains("`1g`"));
        assert!(refused("entries=0..9999999999:1").contains("more than"));
        let huge: Grid = "entries=1..2000:1,ways=1..2000:1".parse().unwrap();
        assert!(huge.points(&[Setup::default()]).is_err());
    }
}
