// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What an IOVA was: a debug layer beside the maps and unmaps, for the readers of fault records.
//!
//! [`History`] keeps the last so many maps and unmaps in a ring; its owner tells it of each, where
//! it has the time for that. It takes one lock and allocates nothing once made. The core knows
//! nothing of it.

use super::FaultRecord;
use alloc::{boxed::Box, vec::Vec};
use core::fmt;
use ioatlas_dma::{
    platform::{Lock, Platform},
    units::{DomainId, GRANULE, IovaPage, IovaRange, Perm, SourceId, TimeNs},
};

/// A record of the maps and unmaps of pages.
pub trait IovaHistory {
    /// What `page` last was to `device`.
    fn recall(&self, device: SourceId, page: IovaPage) -> Past;
}

/// What is remembered of a page.
#[allow(missing_docs)] // its variants and fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Past {
    Mapped {
        /// All pages of the mapping.
        range: IovaRange,
        perm: Perm,
        /// When it was mapped.
        at: TimeNs,
    },
    Unmapped {
        /// All pages of the unmapping.
        range: IovaRange,
        /// It had been mapped for this, if that is remembered.
        perm: Option<Perm>,
        /// How many unmaps of the domain ago, 0 being the last.
        unmaps_ago: u64,
        /// When it was unmapped.
        at: TimeNs,
    },
    /// It was never mapped: everything since the beginning is remembered.
    Never,
    /// Nothing is known: it is not among so many maps and unmaps, and older ones are forgotten.
    Forgotten {
        /// How many maps and unmaps are remembered.
        remembered: u64,
    },
    /// The device is in no domain that is known.
    NoDomain,
}

impl fmt::Display for Past {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Past::Mapped { range, perm, at } => {
                let (size, perm) = (Size(range), Purpose(*perm));
                write!(f, "the page is mapped {perm} since {}", Seconds(*at))?;
                write!(f, ", in a mapping of {size}")
            }
            Past::Unmapped {
                range,
                perm,
                unmaps_ago,
                at,
            } => {
                match unmaps_ago {
                    0 => write!(f, "the page was unmapped by the last unmap")?,
                    1 => write!(f, "the page was unmapped 1 unmap ago")?,
                    n => write!(f, "the page was unmapped {n} unmaps ago")?,
                }
                write!(f, ", at {}", Seconds(*at))?;
                write!(f, "; it was in a mapping of {}", Size(range))?;
                match perm {
                    Some(perm) => write!(f, " {}", Purpose(*perm)),
                    None => Ok(()),
                }
            }
            Past::Never => write!(f, "the page was never mapped"),
            Past::Forgotten { remembered } => {
                write!(
                    f,
                    "the last {remembered} maps and unmaps do not name the page"
                )
            }
            Past::NoDomain => write!(f, "the device is not known to be in any domain"),
        }
    }
}

/// Bytes of a range.
struct Size<'r>(&'r IovaRange);

impl fmt::Display for Size<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB", self.0.pages.0.saturating_mul(GRANULE / 1024))
    }
}

struct Purpose(Perm);

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Perm::Read => "for reading",
            Perm::Write => "for writing",
            Perm::ReadWrite => "for reading and writing",
        })
    }
}

struct Seconds(TimeNs);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.0;
        write!(f, "{}.{:06} s", ns / 1_000_000_000, ns / 1_000 % 1_000_000)
    }
}

/// A fault record and what the page was.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explained {
    pub record: FaultRecord,
    /// What the page was; nothing for an interrupt.
    pub past: Option<Past>,
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.record)?;
        match self.past {
            Some(past) => write!(f, "; {past}"),
            None => Ok(()),
        }
    }
}

/// The last maps and unmaps, and which device is in which domain.
pub struct History<P: Platform>(P::Lock<Ring>);

struct Ring {
    /// As many as there is room for; the oldest at `next` once it is full.
    events: Box<[Option<Event>]>,
    next: usize,
    devices: Vec<(SourceId, DomainId)>,
}

#[derive(Clone, Copy)]
struct Event {
    domain: DomainId,
    range: IovaRange,
    at: TimeNs,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Map(Perm),
    Unmap,
}

impl<P: Platform> History<P> {
    /// Remembers `events` maps and unmaps (at least one), and `devices` devices at a time.
    pub fn new(events: usize, devices: usize) -> Self {
        History(P::Lock::new(Ring {
            events: alloc::vec![None; events.max(1)].into_boxed_slice(),
            next: 0,
            devices: Vec::with_capacity(devices),
        }))
    }

    /// Enters a map of `range` into the ring.
    pub fn mapped(&self, domain: DomainId, range: IovaRange, perm: Perm, at: TimeNs) {
        self.enter(domain, range, at, Kind::Map(perm));
    }
    /// Enters an unmap of `range` into the ring.
    pub fn unmapped(&self, domain: DomainId, range: IovaRange, at: TimeNs) {
        self.enter(domain, range, at, Kind::Unmap);
    }
    /// `device` belongs to `domain` now. Where there is no room for one more, it is left out.
    pub fn attached(&self, device: SourceId, domain: DomainId) {
        self.0.with(|ring| {
            ring.devices.retain(|(known, _)| *known != device);
            if ring.devices.len() < ring.devices.capacity() {
                ring.devices.push((device, domain));
            }
        });
    }
    /// `device` belongs to no domain any more.
    pub fn detached(&self, device: SourceId) {
        self.0
            .with(|ring| ring.devices.retain(|(known, _)| *known != device));
    }

    fn enter(&self, domain: DomainId, range: IovaRange, at: TimeNs, kind: Kind) {
        self.0.with(|ring| {
            let next = ring.next;
            ring.events[next] = Some(Event {
                domain,
                range,
                at,
                kind,
            });
            ring.next = (next + 1) % ring.events.len();
        });
    }
}

impl<P: Platform> IovaHistory for History<P> {
    fn recall(&self, device: SourceId, page: IovaPage) -> Past {
        self.0.with(|ring| {
            let known = ring.devices.iter().find(|(known, _)| *known == device);
            known.map_or(Past::NoDomain, |(_, domain)| ring.recall(*domain, page))
        })
    }
}

impl Ring {
    fn newest_first(&self) -> impl Iterator<Item = &Event> {
        let (new, old) = self.events.split_at(self.next);
        new.iter().rev().chain(old.iter().rev()).flatten()
    }

    fn recall(&self, domain: DomainId, page: IovaPage) -> Past {
        let one = IovaRange::new(page, ioatlas_dma::units::PageCount(1));
        let mut unmaps_ago = 0;
        let mut unmapped = None;
        for event in self.newest_first().filter(|e| e.domain == domain) {
            let names = event.range.contains(&one);
            match (event.kind, names, unmapped) {
                (Kind::Unmap, true, None) => unmapped = Some(*event),
                (Kind::Unmap, false, None) => unmaps_ago += 1,
                (Kind::Map(perm), true, None) => {
                    let (range, at) = (event.range, event.at);
                    return Past::Mapped { range, perm, at };
                }
                // an earlier unmap: the map that belongs to the later one is forgotten or was never
                // told
                (Kind::Unmap, true, Some(later)) => return past(later, None, unmaps_ago),
                (Kind::Map(perm), true, Some(later)) => {
                    return past(later, Some(perm), unmaps_ago);
                }
                (_, false, _) => {}
            }
        }
        match unmapped {
            Some(event) => past(event, None, unmaps_ago),
            None if self.events.iter().any(Option::is_none) => Past::Never,
            None => Past::Forgotten {
                remembered: self.events.len() as u64,
            },
        }
    }
}

fn past(unmap: Event, perm: Option<Perm>, unmaps_ago: u64) -> Past {
    Past::Unmapped {
        range: unmap.range,
        perm,
        unmaps_ago,
        at: unmap.at,
    }
}
