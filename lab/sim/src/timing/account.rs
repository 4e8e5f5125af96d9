// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where time goes: for what ([`Category`], the bars of ATC'15 figure 2) and how ([`Way`]).
//!
//! Each shared access belongs to the category of the source file that makes it, so nothing in the
//! core need be marked.

use core::panic::Location;
use serde::Serialize;

/// What a cycle was spent for.
#[allow(missing_docs)] // its variants say it
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Category {
    /// Choosing IOVAs and taking them back.
    Iova,
    /// Invalidation: policies, invalidations, the unit's driver and the waits for the unit.
    Invalidation,
    Tables,
    /// The rest of mapping and unmapping.
    Other,
    /// Work outside of the mapping code.
    Outside,
}

/// How a cycle was spent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Instructions, and accesses to lines that the CPU holds.
    Compute,
    /// Getting lines that it does not hold.
    Transfer,
    /// Waiting for a lock, or before the gate of `deferred-global`.
    Lock,
    /// Waiting in a loop, for the unit; and idling.
    Wait,
}

impl Category {
    /// All, in the order of [`Account`].
    pub const ALL: [Category; 5] = [
        Category::Iova,
        Category::Invalidation,
        Category::Tables,
        Category::Other,
        Category::Outside,
    ];

    /// By the file in which an access is written. `None` for one that says nothing,
    /// such as a workload's.
    fn of_file(file: &str) -> Option<Category> {
        let has = |part: &str| file.contains(part);
        if has("/iova/") || has("dma/src/magazine") {
            Some(Category::Iova)
        } else if has("/policy/") || has("/invalidation/") || has("vtd/src/") {
            Some(Category::Invalidation)
        } else if has("dma/src/table/") || has("dma/src/translator/") {
            Some(Category::Tables)
        } else if has("dma/src/") {
            Some(Category::Other)
        } else {
            None
        }
    }
}

impl Way {
    /// All, in the order of [`Account`].
    pub const ALL: [Way; 4] = [Way::Compute, Way::Transfer, Way::Lock, Way::Wait];

    /// How time in a wait loop at `location` is spent. A policy's gate stands for a lock that
    /// is held for long.
    pub(crate) fn of_wait(location: &Location<'_>) -> Way {
        match location.file().contains("/policy/gate") {
            true => Way::Lock,
            false => Way::Wait,
        }
    }
}

/// Cycles by category and way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Account([[u64; Way::ALL.len()]; Category::ALL.len()]);

impl Account {
    pub(crate) fn add(&mut self, category: Category, way: Way, cycles: u64) {
        self.0[category as usize][way as usize] += cycles;
    }
    /// What `now` has beyond `before`.
    pub(crate) fn since(now: &Account, before: &Account) -> Account {
        let mut grown = *now;
        let mine = grown.0.iter_mut().flatten();
        mine.zip(before.0.iter().flatten())
            .for_each(|(a, b)| *a -= b);
        grown
    }
    /// Cycles of one category spent in one way.
    pub fn get(&self, category: Category, way: Way) -> u64 {
        self.0[category as usize][way as usize]
    }
    /// Cycles of one category.
    pub fn of(&self, category: Category) -> u64 {
        self.0[category as usize].iter().sum()
    }
    /// Cycles of all categories.
    pub fn total(&self) -> u64 {
        self.0.iter().flatten().sum()
    }
    /// Adds another account, category by category.
    pub fn add_all(&mut self, other: &Account) {
        let mine = self.0.iter_mut().flatten();
        mine.zip(other.0.iter().flatten())
            .for_each(|(a, b)| *a += b);
    }
}

/// Remembers the categories of source lines: asked at each point, and a file's name is long.
pub(crate) struct Categories(Box<[Option<Known>]>);

type Known = (&'static Location<'static>, Option<Category>);

/// The core has some 300 lines with shared accesses.
const REMEMBERED: usize = 1 << 12;

impl Categories {
    pub(crate) fn new() -> Self {
        Categories(vec![None; REMEMBERED].into())
    }
    pub(crate) fn of(&mut self, location: &'static Location<'static>) -> Option<Category> {
        let address = core::ptr::from_ref(location).addr();
        // locations are structures of 24 bytes
        let slot = &mut self.0[address / 8 % REMEMBERED];
        match slot {
            Some((known, category)) if core::ptr::eq(*known, location) => *category,
            _ => {
                let category = Category::of_file(location.file());
                *slot = Some((location, category));
                category
            }
        }
    }
}
