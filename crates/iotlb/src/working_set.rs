// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How many entries are in use: WIOSCA'10, figures 8 and 9.

use crate::event::Event;
use crate::plan::SUPERPAGE_LG2;
use crate::trace::Trace;
use serde::Serialize;
use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

/// What one IOTLB entry covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PageSize {
    /// One page of 4 KiB.
    #[default]
    Page,
    /// A superpage of 2 MiB.
    Superpage,
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PageSize::Page => "4k",
            PageSize::Superpage => "2m",
        })
    }
}

impl FromStr for PageSize {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "4k" => Ok(PageSize::Page),
            "2m" => Ok(PageSize::Superpage),
            _ => Err(format!("`{name}` is no page size; there are 4k and 2m")),
        }
    }
}

/// Distinct pages of all devices in consecutive windows of accesses.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkingSet {
    /// By window; the last may be partial.
    pub windows: Vec<u64>,
    /// Mean over the windows; 0 if there is none.
    pub mean: f64,
    /// Largest number in any window.
    pub maximum: u64,
}

impl WorkingSet {
    /// Accesses in a window of the figures.
    pub const WINDOW: NonZeroUsize = NonZeroUsize::new(1000).unwrap();

    /// Counts in `trace` as it is, faults included, in windows of so many accesses.
    #[must_use]
    pub fn of(trace: &Trace, size: PageSize, window: NonZeroUsize) -> Self {
        let shift = match size {
            PageSize::Page => 0,
            PageSize::Superpage => SUPERPAGE_LG2,
        };
        let (mut windows, mut pages, mut accesses) = (Vec::new(), HashSet::new(), 0);
        for event in trace.events() {
            if let Event::Access { device, page, .. } = *event {
                pages.insert((device, page.number() >> shift));
                accesses += 1;
                if accesses % window == 0 {
                    windows.push(pages.len() as u64);
                    pages.clear();
                }
            }
        }
        if !pages.is_empty() {
            windows.push(pages.len() as u64);
        }
        let sum: u64 = windows.iter().sum();
        Self {
            mean: if windows.is_empty() {
                0.0
            } else {
                sum as f64 / windows.len() as f64
            },
            maximum: windows.iter().copied().max().unwrap_or(0),
            windows,
        }
    }
}
