// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Records what a software unit sees as a trace: an [`Observer`] that writes lines.
//!
//! # Theory
//!
//! Every access that ends is an `A` line, translated or not; one that is given up is none. Where
//! maps and unmaps come from is chosen:
//!
//! * **Told**: the code that maps says so ([`TraceLog::mapped`], [`TraceLog::unmapped`]). Exact;
//!   for domains of our own.
//! * **Derived**: a virtual IOMMU is told nothing by its guest but invalidations, so mappings are
//!   concluded, page by page, as a virtual IOMMU without caching mode can (WIOSCA'10 §3 logs on a
//!   unit that is told of each map):
//!   * the first access that is translated *maps* the page; a page that is mapped and never used is
//!     not seen;
//!   * a page-selective invalidation *unmaps* the pages that it names, since that is what it is
//!     sent for;
//!   * a wider one makes them *doubtful*: the next access tells. The same translation: nothing had
//!     happened. Another: an unmap and a map, at that moment, since the time is not known. A fault:
//!     an unmap. Never accessed again: no line;
//!   * a device that turns up in another domain has lost all pages of the old one.
//!
//! A page is mapped for each device that uses it, as in the format every device is its own domain.
//!
//! Lines are kept as text until [`TraceLog::take`]; an observer runs with the unit's lock held, so
//! nothing is written to a file there. Both the text and the pages remembered are bounded; what
//! does not fit is counted and left out, so that what remains can be read.

use crate::event::{DeviceId, Direction, Event, Permission};
use crate::units::{IovaPage, PageCount, PageRange, PhysPage};
use crate::write::{HEADER, Line};
use ioatlas_dma::units as dma;
use ioatlas_viommu::invalidation::{Invalidation, Selection};
use ioatlas_viommu::observe::{self, Access, Moment, Observer, Outcome};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where maps and unmaps come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mappings {
    /// From accesses and invalidations.
    Derived,
    /// From [`TraceLog::mapped`] and [`TraceLog::unmapped`].
    Told,
}

/// What a log may at most hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogLimits {
    /// Bytes of text between two calls of [`TraceLog::take`].
    pub text_bytes: usize,
    /// Pages thought to be mapped, of all devices together.
    pub pages: usize,
}

ioatlas_dma::setters!(const LogLimits {
    text_bytes: usize,
    pages: usize,
});

impl Default for LogLimits {
    /// 64 MiB of text and 2^20 pages.
    fn default() -> Self {
        Self {
            text_bytes: 64 << 20,
            pages: 1 << 20,
        }
    }
}

/// Records the trace of one unit; see the module.
#[derive(Debug)]
pub struct TraceLog {
    log: Mutex<Log>,
}

/// One page thought to be mapped for a device.
#[derive(Clone, Copy, Debug)]
struct Live {
    to: dma::PhysPage,
    perm: dma::Perm,
    doubtful: bool,
}

#[derive(Debug)]
struct Log {
    mappings: Mappings,
    limits: LogLimits,
    text: String,
    lost: u64,
    /// By device and page.
    live: BTreeMap<(u16, u64), Live>,
    domains: HashMap<u16, dma::DomainId>,
}

impl TraceLog {
    /// An empty log. The first text taken begins with the header of a trace.
    #[must_use]
    pub fn new(mappings: Mappings, limits: LogLimits) -> Self {
        Self {
            log: Mutex::new(Log {
                mappings,
                limits,
                text: format!("{HEADER}\n"),
                lost: 0,
                live: BTreeMap::new(),
                domains: HashMap::new(),
            }),
        }
    }

    /// The lines since the last call. All texts taken, one after the other, are the trace.
    pub fn take(&self) -> String {
        std::mem::take(&mut self.log().text)
    }

    /// Events left out for want of room, or because no trace can name their page (2^52 and above).
    pub fn lost(&self) -> u64 {
        self.log().lost
    }

    /// Pages became accessible for `device`; `phys` is the first physical page,
    /// if they are contiguous.
    pub fn mapped(
        &self,
        device: dma::SourceId,
        pages: dma::IovaRange,
        perm: dma::Perm,
        phys: Option<dma::PhysPage>,
    ) {
        self.log().map(device.0, pages, perm, phys);
    }

    /// Pages stopped being accessible.
    pub fn unmapped(&self, device: dma::SourceId, pages: dma::IovaRange) {
        self.log().unmap(device.0, pages);
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for TraceLog {
    fn event(&self, _at: Moment, event: &observe::Event) {
        let mut log = self.log();
        match event {
            observe::Event::AccessFinished(access) => {
                if log.mappings == Mappings::Derived {
                    log.conclude(access);
                }
                log.access(access);
            }
            observe::Event::InvalidationBegan {
                what: Invalidation::Iotlb { selection, .. },
                ..
            } if log.mappings == Mappings::Derived => log.invalidated(selection),
            _ => {}
        }
    }
}

impl Log {
    fn line(&mut self, device: u16, event: Option<Event>) {
        let device = dma::SourceId(device).to_string();
        let line = event.map(|event| {
            let device = &device;
            format!("{}\n", Line { device, event })
        });
        match line {
            Some(line) if self.text.len() + line.len() <= self.limits.text_bytes => {
                let _ = self.text.write_str(&line); // a string takes all
            }
            _ => self.lost += 1,
        }
    }

    fn map(
        &mut self,
        device: u16,
        pages: dma::IovaRange,
        perm: dma::Perm,
        phys: Option<dma::PhysPage>,
    ) {
        let permission = match perm {
            dma::Perm::Read => Permission::Read,
            dma::Perm::Write => Permission::Write,
            dma::Perm::ReadWrite => Permission::ReadWrite,
        };
        let event = range(pages).map(|range| Event::Map {
            device: DeviceId(0),
            range,
            permission,
            phys: phys.and_then(|p| PhysPage::new(p.0)),
            kind: None,
            extent: None,
        });
        self.line(device, event);
    }

    fn unmap(&mut self, device: u16, pages: dma::IovaRange) {
        let event = range(pages).map(|range| Event::Unmap {
            device: DeviceId(0),
            range,
        });
        self.line(device, event);
    }

    fn access(&mut self, access: &Access) {
        let direction = match access.kind {
            dma::AccessKind::Read => Direction::Read,
            dma::AccessKind::Write => Direction::Write,
        };
        let event = IovaPage::new(access.page.0).map(|page| Event::Access {
            device: DeviceId(0),
            page,
            direction: Some(direction),
        });
        self.line(access.source.0, event);
    }

    /// What an access says about the page.
    fn conclude(&mut self, access: &Access) {
        let (device, page) = (access.source.0, access.page.0);
        let at = (device, page);
        let (to, perm) = match access.outcome {
            Outcome::Translated {
                page, perm, domain, ..
            } => {
                self.joined(device, domain);
                (page, perm)
            }
            Outcome::PassedThrough { .. } => return,
            // a fault of a page in no doubt says something about the access only
            Outcome::Fault(_) => {
                if self.live.get(&at).is_some_and(|live| live.doubtful) {
                    self.forget(&[at]);
                }
                return;
            }
        };
        match self.live.get_mut(&at) {
            Some(live) if live.to == to && live.perm == perm => {
                live.doubtful = false;
                return;
            }
            Some(_) => self.forget(&[at]),
            None => {}
        }
        if self.live.len() >= self.limits.pages {
            self.lost += 1;
            return;
        }
        let doubtful = false;
        self.live.insert(at, Live { to, perm, doubtful });
        let one = dma::IovaRange::new(dma::IovaPage(page), dma::PageCount(1));
        self.map(device, one, perm, Some(to));
    }

    /// A device is seen in a domain.
    fn joined(&mut self, device: u16, domain: dma::DomainId) {
        let before = self.domains.insert(device, domain);
        if before.is_some_and(|before| before != domain) {
            let all = (device, 0)..=(device, u64::MAX);
            let gone: Vec<_> = self.live.range(all).map(|(at, _)| *at).collect();
            self.forget(&gone);
        }
    }

    fn invalidated(&mut self, selection: &Selection) {
        let mut gone = Vec::new();
        for (at, live) in &mut self.live {
            let domain = self.domains.get(&at.0);
            if domain.is_none_or(|d| !selection.names(*d, dma::IovaPage(at.1))) {
                continue;
            }
            match selection {
                Selection::Pages(..) => gone.push(*at),
                Selection::Global | Selection::Domain(_) => live.doubtful = true,
            }
        }
        self.forget(&gone);
    }

    /// Unmaps these pages, given in order, a line for each run of neighbours.
    fn forget(&mut self, gone: &[(u16, u64)]) {
        for run in gone.chunk_by(|a, b| a.0 == b.0 && a.1 + 1 == b.1) {
            let (device, first) = run[0];
            let pages = dma::PageCount(run.len() as u64);
            self.unmap(device, dma::IovaRange::new(dma::IovaPage(first), pages));
        }
        for at in gone {
            self.live.remove(at);
        }
    }
}

fn range(pages: dma::IovaRange) -> Option<PageRange> {
    PageRange::new(IovaPage::new(pages.first.0)?, PageCount(pages.pages.0))
}
