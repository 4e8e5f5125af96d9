// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a trace shows of one device, counted as its events go by.

use crate::papers::wiosca10::share;
use ioatlas_iotlb::{Class, Permission};
use std::collections::BTreeSet;

/// Accesses of a window, in which the consistent pages should occur.
const WINDOW: u64 = 1000;
/// Pages remembered of one mapping: more than any device's.
const MOST_PAGES: u64 = 1 << 16;

/// What a trace shows of one device.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    pub consistent_pages: BTreeSet<u64>,
    pub streaming_pages: BTreeSet<u64>,
    pub consistent_accesses: u64,
    pub streaming_accesses: u64,
    /// Consistent accesses of each window of accesses.
    pub windows: Vec<u64>,
    /// Steps to the page below, to the page above, and elsewhere.
    pub down: u64,
    pub up: u64,
    pub jumps: u64,
    /// Groups that begin below the one before, or not, and those that end just below it.
    pub groups_below: u64,
    pub groups_above: u64,
    pub groups_adjacent: u64,
    pub consistent_maps: u64,
    /// Of those, those after the first streaming one.
    pub consistent_late: u64,
    /// The streaming page accessed last, by permission.
    pub last_page: [Option<u64>; 3],
    /// The first pages of the last two groups.
    pub group: Option<u64>,
    pub before: Option<u64>,
    /// The page after the last of the group, while it can go on.
    pub end: Option<u64>,
}

/// Number of a stream.
pub(super) fn stream(permission: Permission) -> usize {
    match permission {
        Permission::Read => 0,
        Permission::Write => 1,
        Permission::ReadWrite => 2,
    }
}

impl Observed {
    pub fn access(&mut self, class: Class, stream: usize, page: u64) {
        self.end_group();
        let accesses = self.consistent_accesses + self.streaming_accesses;
        if accesses.is_multiple_of(WINDOW) {
            self.windows.push(0);
        }
        match class {
            Class::Consistent => {
                self.consistent_accesses += 1;
                self.consistent_pages.insert(page);
                if let Some(window) = self.windows.last_mut() {
                    *window += 1;
                }
            }
            Class::Streaming => {
                self.streaming_accesses += 1;
                match self.last_page[stream].replace(page) {
                    Some(last) if last == page => {}
                    Some(last) if last == page + 1 => self.down += 1,
                    Some(last) if last + 1 == page => self.up += 1,
                    Some(_) => self.jumps += 1,
                    None => {}
                }
            }
        }
    }

    pub fn map(&mut self, class: Class, first: u64, pages: u64) {
        let these = first..first + pages.min(MOST_PAGES);
        match class {
            Class::Consistent => {
                self.end_group();
                self.consistent_maps += 1;
                self.consistent_late += u64::from(self.group.is_some());
                self.consistent_pages.extend(these);
            }
            Class::Streaming => {
                self.streaming_pages.extend(these);
                if self.end != Some(first) {
                    self.end_group();
                    self.before = self.group.replace(first);
                }
                self.end = Some(first + pages);
            }
        }
    }

    /// Something else happened, or another group begins: counts the group, if one is open.
    pub fn end_group(&mut self) {
        let Some(end) = self.end.take() else {
            return;
        };
        if let (Some(before), Some(first)) = (self.before, self.group) {
            self.groups_below += u64::from(first < before);
            self.groups_above += u64::from(first >= before);
            self.groups_adjacent += u64::from(end == before);
        }
    }

    pub fn neighbours(&self) -> u64 {
        self.up + self.down
    }

    /// Accesses of a consistent page over those of a streaming mapping's page, on average.
    pub fn rapidity(&self) -> f64 {
        let of = |accesses, pages: &BTreeSet<u64>| share(accesses, pages.len() as u64);
        let streaming = of(self.streaming_accesses, &self.streaming_pages);
        of(self.consistent_accesses, &self.consistent_pages) / streaming.max(f64::MIN_POSITIVE)
    }

    /// The share of whole windows in which a consistent page is accessed.
    pub fn windows_with(&self) -> f64 {
        let accesses = self.consistent_accesses + self.streaming_accesses;
        let whole = (accesses / WINDOW) as usize;
        let with = self.windows[..whole].iter().filter(|count| **count > 0);
        share(with.count() as u64, whole as u64)
    }
}
