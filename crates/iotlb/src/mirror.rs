// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Groups, and their mirror images.
//!
//! *Group* (WIOSCA'10, section 4.7): a maximal run of streaming maps of one device,
//! uninterrupted by any other event of that device, in which each starts at the page
//! after the previous one's last. *Image*: a group that spans pages a to b puts its
//! page p at a + b - p, as if the operating system handed pages out in descending order
//! (section 4.6). Every event moves by the group of its page's latest map.
//!
//! The end of a group is known only once it is over. [`LongGroups`] finds in a pass of
//! its own the groups that stretch over more events than [`Window`] holds back; the
//! window finds the others.

use crate::classify::Class;
use crate::event::Event;
use crate::runs::Runs;
use crate::units::PageRange;
use std::collections::{HashMap, VecDeque};

/// Numbers groups in the order of their first maps.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    /// By device: number of the group that the next map may join, and the page that
    /// it must start at.
    open: Vec<Option<(u64, u64)>>,
    next: u64,
}

/// The group of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    pub group: u64,
    /// Whether the map is the group's first.
    pub opens: bool,
}

impl Groups {
    pub fn new(devices: usize) -> Self {
        Self {
            open: vec![None; devices],
            next: 0,
        }
    }

    /// The group of the next event, if it is a streaming map. Every event must pass.
    pub fn next(&mut self, event: &Event, class: Option<Class>) -> Option<Membership> {
        let open = &mut self.open[event.device().index()];
        let (&Event::Map { range, .. }, Some(Class::Streaming)) = (event, class) else {
            *open = None;
            return None;
        };
        let (first, end) = (range.first().number(), range.last().number() + 1);
        let joined = open.filter(|&(_, page)| page == first);
        let group = joined.map_or(self.next, |(group, _)| group);
        self.next += u64::from(joined.is_none());
        *open = Some((group, end));
        Some(Membership {
            group,
            opens: joined.is_none(),
        })
    }
}

/// First and last page of a group.
type Extent = (u64, u64);

/// The groups whose first and last maps are at least `window` events apart.
#[derive(Clone, Debug, Default)]
pub(crate) struct LongGroups(HashMap<u64, Extent>);

/// Finds the long groups in a trace that is seen once.
#[derive(Debug)]
pub(crate) struct LongGroupFinder {
    window: u64,
    time: u64,
    /// By device: its latest group, when it began, and its extent so far.
    latest: Vec<Option<(u64, u64, Extent)>>,
    found: LongGroups,
}

impl LongGroupFinder {
    pub fn new(devices: usize, window: usize) -> Self {
        Self {
            window: window as u64,
            time: 0,
            latest: vec![None; devices],
            found: LongGroups::default(),
        }
    }

    /// Sees the next event.
    pub fn observe(&mut self, event: &Event, membership: Option<Membership>) {
        let now = self.time;
        self.time += 1;
        let (Some(Membership { group, .. }), &Event::Map { range, .. }) = (membership, event)
        else {
            return;
        };
        let (first, last) = (range.first().number(), range.last().number());
        let latest = &mut self.latest[event.device().index()];
        match latest {
            Some((number, began, extent)) if *number == group => {
                extent.1 = last;
                if now - *began >= self.window {
                    self.found.0.insert(group, *extent);
                }
            }
            _ => *latest = Some((group, now, (first, last))),
        }
    }

    pub fn finish(self) -> LongGroups {
        self.found
    }
}

/// An event with what is known of it, on its way through the window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub event: Event,
    pub class: Option<Class>,
    pub membership: Option<Membership>,
}

/// Holds events back until the group of each is complete.
#[derive(Debug)]
pub(crate) struct Window {
    size: usize,
    long: LongGroups,
    held: VecDeque<Known>,
    /// Groups with a map that is held: extent of the maps seen, and how many are held.
    extents: HashMap<u64, (Extent, usize)>,
}

impl Window {
    /// `long` must have been found for a window of the same size, above 0.
    pub fn new(size: usize, long: LongGroups) -> Self {
        Self {
            size,
            long,
            held: VecDeque::new(),
            extents: HashMap::new(),
        }
    }

    /// Takes an event in; gives the one that has been held longest, if it is due, with
    /// the extent of its group.
    pub fn push(&mut self, known: Known) -> Option<(Known, Option<Extent>)> {
        if let (Some(Membership { group, .. }), Event::Map { range, .. }) =
            (known.membership, known.event)
        {
            let (first, last) = (range.first().number(), range.last().number());
            let (extent, maps) = self.extents.entry(group).or_insert(((first, last), 0));
            extent.1 = last;
            *maps += 1;
        }
        self.held.push_back(known);
        if self.held.len() > self.size {
            self.pop()
        } else {
            None
        }
    }

    /// Gives the events that are left, one by one.
    pub fn pop(&mut self) -> Option<(Known, Option<Extent>)> {
        let known = self.held.pop_front()?;
        let extent = known.membership.and_then(|Membership { group, .. }| {
            let (seen, maps) = self.extents.get_mut(&group)?;
            let (seen, long) = (*seen, self.long.0.get(&group).copied());
            *maps -= 1;
            if *maps == 0 {
                self.extents.remove(&group);
            }
            Some(long.unwrap_or(seen))
        });
        Some((known, extent))
    }
}

/// Where the mapped pages of the original trace have their images.
#[derive(Clone, Debug)]
pub(crate) struct Images {
    /// By device: first + last page of the group of each mapped page's latest map, or
    /// `None` where that is in no group.
    sums: Vec<Runs<Option<u64>>>,
}

impl Images {
    pub fn new(devices: usize) -> Self {
        Self {
            sums: vec![Runs::default(); devices],
        }
    }

    /// Maps the original pages; returns the first and last page of their image.
    pub fn map(&mut self, device: usize, range: PageRange, group: Option<Extent>) -> Extent {
        let sum = group.map(|(first, last)| first + last);
        let (first, last) = (range.first().number(), range.last().number());
        self.sums[device].insert(first, last, sum);
        image(first, last, sum)
    }

    /// Unmaps the original pages, telling `each` the image of every piece; returns
    /// how many there were.
    pub fn unmap(&mut self, device: usize, range: PageRange, mut each: impl FnMut(Extent)) -> u64 {
        let (first, last) = (range.first().number(), range.last().number());
        let pages = self.sums[device].take(first, last, |first, last, sum| {
            each(image(first, last, sum));
        });
        pages.0
    }

    /// The image of a page, if the original is mapped.
    pub fn of(&self, device: usize, page: u64) -> Option<u64> {
        let sum = self.sums[device].get(page)?;
        Some(image(page, page, sum).0)
    }
}

fn image(first: u64, last: u64, sum: Option<u64>) -> Extent {
    match sum {
        // No less than 0, unless the file changes between passes.
        Some(sum) => (sum.saturating_sub(last), sum.saturating_sub(first)),
        None => (first, last),
    }
}
