// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The debug layer: what a driver does wrong, with what went before.
//!
//! [`Dma::watched`] makes a [`Dma`] whose every map, sync and unmap is noted by a [`Recorder`]; a
//! plain one has [`Off`], whose calls are empty and compiled away. (The idea is that of Linux's
//! dma-debug.) Tokens make most mistakes impossible to write down; what is left is found here:
//! mappings still alive when their device is detached, the CPU at a buffer that the device owns,
//! raw unmaps that fit nothing; and of any IOVA the recorder tells what it was last, for the
//! analysis of a fault.
//!
//! Locking: one lock for the live mappings and the history, held for a search in a sorted vector at
//! most. Watching is for debugging: it makes all CPUs meet at that lock.

use super::*;
use crate::units::*;
use core::cmp::Reverse;

/// What is told of every operation.
pub trait Watch<P: Platform>: Send + Sync {
    /// A list is mapped.
    fn mapped(&self, _by: &Event, _list: &[PhysRange]) {}
    /// A mapping is about to end.
    fn unmapped(&self, _by: &Event) {}
    /// It has, and nothing of the domain waits for an invalidation.
    fn flushed(&self, _by: &Event) {}
    /// Bytes of a mapping belong to the other side from now on.
    fn synced(&self, _iova: Iova, _span: Span, _to: SyncFor) {}
    /// Something did not fit.
    fn found(&self, _by: &Event, _what: Mistake) {}
    /// Whether it wants to be told.
    fn is_on(&self) -> bool {
        false
    }
}

/// Nothing is watched, and that costs nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct Off;

impl<P: Platform> Watch<P> for Off {}

/// One operation, as a [`Watch`] is told of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Where the device sees it.
    pub iova: Iova,
    /// How long it is.
    pub len: ByteCount,
    /// Which way data flow.
    pub direction: Direction,
    /// The CPU that it ran on.
    pub cpu: CpuIndex,
    /// When, by [`DmaConfig::clock`]; 0 without one.
    pub at: TimeNs,
    /// For which client: its number in the order they were made.
    pub client: u64,
}

/// Whether what an unmap retired is flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// It was, by this time.
    Done(TimeNs),
    /// Not known; the policy defers it.
    Deferred,
}

/// What a driver did wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Mistake {
    /// An unmap or a sync through the address API of what is not mapped: most often the second one.
    #[error("nothing is mapped there")]
    NotMapped,
    /// It has another length than was given.
    #[error("its length is {mapped}")]
    WrongLength {
        /// The length that was mapped.
        mapped: ByteCount,
    },
    /// It has another direction than was given.
    #[error("its direction is {mapped:?}")]
    WrongDirection {
        /// The direction that was mapped.
        mapped: Direction,
    },
    /// A sync outside the mapping.
    #[error("{0} are not within it")]
    Outside(Span),
    /// The CPU accesses what the device owns.
    #[error("the CPU accesses {0}, which the device owns")]
    CpuAccess(PhysRange),
    /// It is still mapped at the end of its client.
    #[error("still mapped when its device was detached")]
    Leak,
}

/// A mistake, and whose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The operation at fault.
    pub by: Event,
    /// What is wrong with it.
    pub what: Mistake,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.by, self.what)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event {
            iova,
            len,
            direction,
            cpu,
            client,
            ..
        } = self;
        write!(
            f,
            "client {client}, CPU {}: {len} bytes at {iova}, {direction:?}",
            cpu.0
        )
    }
}

/// Notes everything, for as far back as it has room.
pub struct Recorder<P: Platform> {
    state: P::Lock<State>,
    history_max: usize,
    findings_max: usize,
}

struct State {
    /// Sorted by their IOVAs.
    live: Vec<Live>,
    /// The latest last; a ring once it is full.
    history: Vec<Past>,
    next: usize,
    findings: Vec<Finding>,
    /// Findings for which there was no room.
    missed: u64,
}

struct Live {
    event: Event,
    list: Vec<PhysRange>,
    /// What the CPU has of it between two syncs.
    with_cpu: Option<Span>,
}

/// A mapping that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Past {
    /// The map that began it.
    pub mapped: Event,
    /// The unmap that ended it.
    pub unmapped: Event,
    /// Whether it was flushed then.
    pub flush: Flush,
}

/// What is known of one IOVA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Story {
    /// The mapping that covers it, if one does.
    pub live: Option<Event>,
    /// Those that did, the latest first.
    pub past: Vec<Past>,
    /// When this was asked.
    pub now: TimeNs,
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ago = |at: TimeNs| {
            let us = self.now.0.saturating_sub(at.0) / 1000;
            (us / 1000, us / 100 % 10)
        };
        if let Some(live) = &self.live {
            let (ms, tenth) = ago(live.at);
            write!(f, "mapped {ms}.{tenth} ms ago by {live}")?;
        }
        for (nth, past) in self.past.iter().enumerate() {
            if nth > 0 || self.live.is_some() {
                write!(f, "; before that ")?;
            }
            let (ms, tenth) = ago(past.unmapped.at);
            let Past {
                mapped, unmapped, ..
            } = past;
            write!(f, "unmapped {ms}.{tenth} ms ago by CPU {}", unmapped.cpu.0)?;
            write!(f, " as what {mapped} had mapped, ")?;
            match past.flush {
                Flush::Done(at) => {
                    let (ms, tenth) = ago(at);
                    write!(f, "flushed {ms}.{tenth} ms ago")?;
                }
                Flush::Deferred => write!(f, "its flush deferred")?,
            }
        }
        if self.live.is_none() && self.past.is_empty() {
            write!(f, "never mapped, as far back as was noted")?;
        }
        Ok(())
    }
}

fn covers(event: &Event, iova: Iova) -> bool {
    // by the granule: that is what a device reaches
    let pages = pages_touched(event.iova.offset(), event.len);
    let range = IovaRange::new(event.iova.page(), pages);
    range.first <= iova.page() && iova.page() < range.end()
}

impl<P: Platform> Default for Recorder<P> {
    /// Room for 4,096 mappings that have ended, and for 256 findings.
    fn default() -> Self {
        Recorder::new(4096, 256)
    }
}

impl<P: Platform> Recorder<P> {
    /// Room for so many mappings that have ended, and for so many findings.
    pub fn new(history_max: usize, findings_max: usize) -> Self {
        Recorder {
            state: P::Lock::new(State {
                live: Vec::new(),
                history: Vec::new(),
                next: 0,
                findings: Vec::new(),
                missed: 0,
            }),
            history_max: history_max.max(1),
            findings_max,
        }
    }

    /// What was found so far, and how much more there was no room for.
    pub fn findings(&self) -> (Vec<Finding>, u64) {
        self.state
            .with(|state| (state.findings.clone(), state.missed))
    }

    /// What is and was mapped at `iova`, for the analysis of a fault there.
    pub fn story(&self, iova: Iova, now: TimeNs) -> Story {
        self.state.with(|state| {
            let live = state.live.iter().find(|live| covers(&live.event, iova));
            let past = state
                .history
                .iter()
                .filter(|past| covers(&past.mapped, iova));
            let mut past: Vec<Past> = past.copied().collect();
            past.sort_by_key(|past| Reverse(past.unmapped.at));
            Story {
                live: live.map(|live| live.event),
                past,
                now,
            }
        })
    }

    /// The mappings of `client` that are alive, each of them noted as a leak.
    pub fn leaks(&self, client: u64) -> Vec<Event> {
        self.state.with(|state| {
            let live = state.live.iter().map(|live| live.event);
            let leaks: Vec<Event> = live.filter(|event| event.client == client).collect();
            for by in &leaks {
                self.push(state, *by, Mistake::Leak);
            }
            leaks
        })
    }

    /// Checks an access by the CPU to memory that may be mapped: to what the device owns, it is
    /// a mistake, and noted.
    ///
    /// # Errors
    /// The mistake, with the operation that mapped the memory.
    pub fn check_cpu_access(&self, range: PhysRange) -> Result<(), Finding> {
        self.state.with(|state| {
            let hit = state.live.iter().find(|live| live.owns(range));
            let Some(by) = hit.map(|live| live.event) else {
                return Ok(());
            };
            let what = Mistake::CpuAccess(range);
            self.push(state, by, what);
            Err(Finding { by, what })
        })
    }

    fn push(&self, state: &mut State, by: Event, what: Mistake) {
        match state.findings.len() < self.findings_max {
            true => state.findings.push(Finding { by, what }),
            false => state.missed += 1,
        }
    }
}

impl Live {
    /// Whether the device has a byte of `range`.
    fn owns(&self, range: PhysRange) -> bool {
        let cpu = self.with_cpu.unwrap_or_default();
        let (cpu_from, cpu_to) = (cpu.at.0, cpu.at.0 + cpu.len.0);
        let mut before = 0;
        self.list.iter().any(|segment| {
            let from = range.addr.0.max(segment.addr.0);
            let to = (range.addr.0.saturating_add(range.len.0)).min(segment.addr.0 + segment.len.0);
            let (first, last) = (
                before + from.saturating_sub(segment.addr.0),
                before + to.saturating_sub(segment.addr.0),
            );
            before += segment.len.0;
            from < to && !(cpu_from <= first && last <= cpu_to)
        })
    }
}

impl<P: Platform> Watch<P> for Recorder<P> {
    fn is_on(&self) -> bool {
        true
    }
    fn mapped(&self, by: &Event, list: &[PhysRange]) {
        let live = Live {
            event: *by,
            list: list.to_vec(),
            with_cpu: None,
        };
        self.state.with(|state| {
            let at = state
                .live
                .partition_point(|live| live.event.iova.0 < by.iova.0);
            state.live.insert(at, live);
        });
    }
    fn unmapped(&self, by: &Event) {
        self.state.with(|state| {
            let same = |live: &Live| (live.event.iova, live.event.len) == (by.iova, by.len);
            let Some(at) = state.live.iter().position(same) else {
                return;
            };
            let past = Past {
                mapped: state.live.remove(at).event,
                unmapped: *by,
                flush: Flush::Deferred,
            };
            match state.history.get_mut(state.next) {
                Some(oldest) => *oldest = past,
                None => state.history.push(past),
            }
            state.next = (state.next + 1) % self.history_max;
        });
    }
    fn flushed(&self, by: &Event) {
        self.state.with(|state| {
            // all that ended before is flushed with it
            for past in &mut state.history {
                if past.flush == Flush::Deferred && past.unmapped.at <= by.at {
                    past.flush = Flush::Done(by.at);
                }
            }
        });
    }
    fn synced(&self, iova: Iova, span: Span, to: SyncFor) {
        self.state.with(|state| {
            if let Some(live) = state.live.iter_mut().find(|live| live.event.iova == iova) {
                live.with_cpu = match to {
                    SyncFor::Cpu => Some(span),
                    SyncFor::Device => None,
                };
            }
        });
    }
    fn found(&self, by: &Event, what: Mistake) {
        self.state.with(|state| self.push(state, *by, what));
    }
}
