// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Pages that several mappings share, counted beside the kernel's tables (`identity`, ATC'15 §4.1).
//!
//! The kernel refuses to map a page twice, and does not count. So here is a count for each page
//! that is mapped; the kernel is asked for the first one and for none after the last. Mappings
//! overlap in any way, and a kernel's mapping ends only whole, so *each page is a mapping of its
//! own* to the kernel: a call for each page that no mapping had, though one call ends as many
//! neighbours as have become idle. That is what identity costs over VFIO.
//!
//! A page whose count falls to 0 is *idle*: the kernel still maps it until its invalidation. A
//! mapping that comes before that takes it as it is, by no call; that is what a page table's leaf
//! does as well, when a map comes between the last unmap and its flush.

use super::ending::Told;
use ioatlas_dma::{
    table::{Cleared, InstallCause},
    units::*,
};
use std::collections::{BTreeMap, HashMap, hash_map};

/// A page that some mapping has, or has had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Page {
    to: PhysPage,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// A thread is asking the kernel for it.
    Beginning,
    /// The kernel has it, and so many mappings. It is idle where that is none.
    Counted(u32),
}

/// What came of taking a page.
pub(super) enum Taken {
    Yes,
    No(InstallCause),
    /// No mapping has it: the caller asks the kernel, and then says what came of it.
    ByUs,
    /// Another thread is asking the kernel for it.
    ByAnother,
}

#[derive(Default)]
pub(super) struct Shared {
    pages: HashMap<IovaPage, Page>,
    /// Those whose count is 0.
    idle: BTreeMap<IovaPage, Told>,
}

impl Shared {
    pub fn take_one(&mut self, at: IovaPage, to: PhysPage) -> Taken {
        let page = match self.pages.entry(at) {
            hash_map::Entry::Occupied(page) => page.into_mut(),
            hash_map::Entry::Vacant(none) => {
                let state = State::Beginning;
                none.insert(Page { to, state });
                return Taken::ByUs;
            }
        };
        let State::Counted(count) = &mut page.state else {
            return Taken::ByAnother;
        };
        if page.to != to {
            return Taken::No(InstallCause::AlreadyMapped(at));
        }
        let Some(more) = count.checked_add(1) else {
            return Taken::No(InstallCause::Saturated(at));
        };
        if *count == 0 {
            self.idle.remove(&at);
        }
        *count = more;
        Taken::Yes
    }

    /// What came of asking the kernel for a page.
    pub fn begun(&mut self, at: IovaPage, mapped: bool) {
        if !mapped {
            self.pages.remove(&at);
        } else if let Some(page) = self.pages.get_mut(&at) {
            page.state = State::Counted(1);
        }
    }

    /// Takes one away of each page of `range`.
    pub fn give(&mut self, range: IovaRange) -> Cleared {
        let mut cleared = Cleared::default();
        for at in range.iter() {
            if let Some(page) = self.pages.get_mut(&at)
                && let State::Counted(count @ 1..) = &mut page.state
            {
                *count -= 1;
                cleared.found.0 += 1;
                if *count == 0 {
                    cleared.gone.0 += 1;
                    self.idle.insert(at, Told::No);
                }
            }
        }
        cleared
    }

    /// All of them, for the end of the domain.
    pub fn give_all(&mut self) {
        for (at, page) in &mut self.pages {
            page.state = State::Counted(0);
            self.idle.entry(*at).or_insert(Told::No);
        }
    }

    /// Pages that the kernel still maps, though no mapping has them, ascending.
    pub fn idle(&self) -> Vec<(IovaPage, Told)> {
        self.idle.iter().map(|(at, told)| (*at, *told)).collect()
    }
    /// The kernel refuses to end these; of some an invalidation `fails` now.
    pub fn refused(&mut self, range: IovaRange, fails: impl Fn(&IovaRange) -> bool) {
        for (at, told) in self.idle.range_mut(range.first..range.end()) {
            if fails(&IovaRange::new(*at, PageCount(1))) {
                *told = Told::Yes;
            }
        }
    }
    /// The kernel does not map them any more.
    pub fn ended(&mut self, range: IovaRange) {
        for at in range.iter() {
            self.idle.remove(&at);
            self.pages.remove(&at);
        }
    }
    pub fn has_idle(&self, within: impl Fn(&IovaRange) -> bool) -> bool {
        let mut idle = self.idle.keys();
        idle.any(|at| within(&IovaRange::new(*at, PageCount(1))))
    }

    /// Pages that mappings have, and how often they are mapped.
    pub fn census(&self) -> (PageCount, PageCount) {
        let count = |page: &Page| match page.state {
            State::Counted(count) => u64::from(count),
            State::Beginning => 0,
        };
        let counts = || self.pages.values().map(count);
        let mapped = counts().filter(|count| *count > 0).count();
        (PageCount(mapped as u64), PageCount(counts().sum()))
    }

    pub fn audit(&self) -> Result<(), String> {
        for (at, page) in &self.pages {
            let is_idle = page.state == State::Counted(0);
            if page.state == State::Beginning || is_idle != self.idle.contains_key(at) {
                return Err(format!("page {at} is {:?}", page.state));
            }
        }
        match self.idle.keys().find(|at| !self.pages.contains_key(at)) {
            Some(at) => Err(format!("page {at} is idle and not there")),
            None => Ok(()),
        }
    }
}
