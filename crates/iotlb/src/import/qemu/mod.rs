// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Logs of QEMU with an emulated VT-d unit and an unmodified Linux guest.
//!
//! # What is in such a log
//!
//! QEMU (`-device intel-iommu,intremap=off -D LOG`, software emulation) writes two kinds of lines,
//! in one order:
//!
//! * **trace events** (`-trace enable=..`): `vtd_iotlb_page_hit` and `vtd_iotlb_page_update`, one
//!   of the two for each access that a device makes; `vtd_inv_desc_iotlb_pages`, the guest's
//!   page-selective invalidations; `vtd_dmar_fault`; and `port92_write`, with which a guest marks
//!   the phases of a workload (`2 | n << 2`). With `-msg timestamp=on` each begins with
//!   `pid@seconds.microseconds:`;
//! * **register dumps** (`-d cpu -dfilter ADDRESS+1,..`) at the entry of five functions of the
//!   guest's kernel ([`Function`]), which is booted with `nokaslr` so that their addresses hold:
//!   what a map or an unmap says is in the registers, by the calling convention.
//!
//! # How lines become events
//!
//! *Domain*: a guest kernel's `struct iommu_domain`, known by its address (RDI). *Source*: the
//! requester number of a device, known from accesses. Which source a domain serves is nowhere said;
//! the first access to a page that the domain maps, to the very physical page, tells. Until then
//! the domain's events are *held*, and all later ones behind them, for the order is the point. At
//! most [`HELD_MOST`] are held; then the oldest domain goes by the name `domainN` for good.
//!
//! *Kind*: a dump of the DMA interface's function whose stack frame encloses the one of the map. An
//! interrupt's frame is on another stack, so its maps do not take the kind of what it interrupted.
//!
//! *Direct* mapping: made outside the DMA interface, each page onto itself: reserved regions, the
//! ISA bridge. It is no event of a workload; it is counted and left out, and so are the accesses to
//! it.
//!
//! A block of code that an interrupt stops before its first instruction is dumped twice. The second
//! dump has the registers of the first (its *fingerprint*; only the CPU may be another, for the
//! task may have been moved) and maps what the first has mapped, or unmaps what is not mapped: it
//! is left out and counted.
//!
//! A CPU is known by the base of its per-CPU area (GS), and numbered in order of first appearance.
//! The time of a map or unmap is that of the last trace event before it, on the clock of the
//! machine that emulates.
//!
//! # What is not handled
//!
//! Kernels whose VT-d driver has no `map_pages` and `unmap_pages` (before 5.15; after the move to
//! generic page tables). Whether an access to a page mapped for both was a read or a write: the
//! unit does not say. Scalable mode, interrupts, and requests with PASID.

mod dump;
mod events;
mod symbols;

pub use symbols::{Function, MissingSymbol, Symbols};

use super::Item;
use crate::event::{DeviceId, Direction, Event, Kind, Permission};
use crate::runs::Runs;
use crate::trace::Stamp;
use crate::units::{IovaPage, PageCount, PageRange, PhysPage};
use dump::{Dump, Registers};
use events::TraceEvent;
use std::collections::{HashMap, VecDeque};
use std::io;

/// Events that may wait for the name of a domain.
pub const HELD_MOST: usize = 1 << 16;
/// Unmaps in which the repetition of one is looked for. A task that is interrupted may wait for its
/// turn while others do theirs.
const RECENT_UNMAPS: usize = 4096;
/// Domains that a guest may have: one an IOMMU group, so a machine has few.
pub const DOMAINS_MOST: usize = 4096;
/// CPUs that a guest may have; events of others have no time and CPU.
const CPUS_MOST: usize = 8192;
/// Calls of the DMA interface that may be under way: one a CPU and nesting level.
const CALLS_MOST: usize = 1024;
/// Linux' kernel stacks are 16 KiB, so a caller's frame is less than that above its callee's.
const STACK_BYTES: u64 = 16 << 10;

/// A log cannot be turned into a trace.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // its fields say it
pub enum QemuError {
    /// A line that should say something does not.
    #[error("line {line}: {event}: {field} is missing or not a number")]
    Field {
        /// Of the log, from 1.
        line: u64,
        /// The trace event or `register dump`.
        event: &'static str,
        field: &'static str,
    },
    /// A map or unmap that no address space holds.
    #[error("line {line}: {function}: {pages} pages from address {address:#x} are no range")]
    Range {
        /// Of the log, from 1.
        line: u64,
        /// Which function of the guest was called.
        function: Function,
        address: u64,
        /// As the registers say.
        pages: u64,
    },
    /// Not what a machine does.
    #[error("line {line}: more than {DOMAINS_MOST} domains")]
    TooManyDomains {
        /// Of the log, from 1.
        line: u64,
    },
    /// The caller could not take an event.
    #[error("cannot write the trace: {0}")]
    Output(#[from] io::Error),
}

/// Counts of what a log said, up to some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs)] // its fields say it
pub struct Counts {
    /// Calls of `map_pages`, repeated dumps left out.
    pub maps: u64,
    /// Pages that they mapped.
    pub mapped_pages: u64,
    /// Calls of `unmap_pages`, repeated dumps left out.
    pub unmaps: u64,
    /// Pages that they unmapped.
    pub unmapped_pages: u64,
    /// Accesses, those to direct mappings among them.
    pub accesses: u64,
    pub invalidations: u64,
    /// Faults that the unit reported.
    pub faults: u64,
    /// Maps outside the DMA interface; not in the trace.
    pub direct_maps: u64,
    pub direct_pages: u64,
    /// Accesses to those; not in the trace.
    pub direct_accesses: u64,
    /// Dumps that say the same as an earlier one.
    pub repeated_dumps: u64,
}

/// What a domain maps a run of pages to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    /// Physical page number less page number, modulo 2^64.
    shift: u64,
    permission: Permission,
    direct: bool,
    /// Fingerprint of the call that mapped it.
    made_by: u64,
}

#[derive(Debug)]
struct Domain {
    name: String,
    live: Runs<Target>,
}

#[derive(Debug)]
enum Held {
    Mark(u64),
    Event {
        domain: usize,
        event: Event,
        at: Option<Stamp>,
    },
}

/// Turns a log into a trace, line by line; see the module.
#[derive(Debug)]
pub struct QemuLog {
    symbols: Symbols,
    line: u64,
    dump: Dump,
    /// Fingerprints of the last calls of `unmap_pages`.
    unmaps: VecDeque<u64>,
    calls: Vec<(u64, Kind)>,
    domains: Vec<Domain>,
    by_pointer: HashMap<u64, usize>,
    by_source: HashMap<u16, usize>,
    held: VecDeque<Held>,
    /// Since the first time stamp.
    now_ns: Option<u64>,
    first_us: Option<u64>,
    said: Option<Stamp>,
    cpus: HashMap<u64, u32>,
    last_mark: Option<u64>,
    counts: Counts,
}

impl QemuLog {
    /// Before the first line of a log whose guest has these functions.
    #[must_use]
    pub fn new(symbols: Symbols) -> Self {
        Self {
            symbols,
            line: 0,
            dump: Dump::default(),
            unmaps: VecDeque::new(),
            calls: Vec::new(),
            domains: Vec::new(),
            by_pointer: HashMap::new(),
            by_source: HashMap::new(),
            held: VecDeque::new(),
            now_ns: None,
            first_us: None,
            said: None,
            cpus: HashMap::new(),
            last_mark: None,
            counts: Counts::default(),
        }
    }

    /// What the log said so far, held events among it.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The last mark that the log has, given out already or not.
    #[must_use]
    pub fn last_mark(&self) -> Option<u64> {
        self.last_mark
    }

    /// Takes the next line and gives `out` what is known now. Lines that say nothing of interest
    /// are skipped, and so is one without its end: a QEMU that was killed leaves half a line.
    ///
    /// # Errors
    ///
    /// The log is of no use then.
    pub fn line(
        &mut self,
        line: &[u8],
        out: &mut dyn FnMut(Item<'_>) -> io::Result<()>,
    ) -> Result<(), QemuError> {
        self.line += 1;
        let Some(line) = line.strip_suffix(b"\n") else {
            return Ok(());
        };
        if self.dump.line(line) {
            if let Some(registers) = self.dump.finished() {
                self.called(registers)?;
            }
        } else if let Some((stamp_us, event)) = events::parse(line, self.line)? {
            self.clock(stamp_us);
            self.traced(event)?;
        }
        self.release(out)
    }

    /// The log is at its end: gives `out` what was held.
    pub fn finish(
        mut self,
        out: &mut dyn FnMut(Item<'_>) -> io::Result<()>,
    ) -> Result<Counts, QemuError> {
        while !self.held.is_empty() {
            self.name_oldest();
            self.release(out)?;
        }
        Ok(self.counts)
    }

    fn clock(&mut self, stamp_us: Option<u64>) {
        if let Some(us) = stamp_us {
            let first = *self.first_us.get_or_insert(us);
            let ns = us.saturating_sub(first).saturating_mul(1000);
            // the wall clock may be set back
            self.now_ns = self.now_ns.max(Some(ns));
        }
    }

    fn traced(&mut self, event: TraceEvent) -> Result<(), QemuError> {
        match event {
            TraceEvent::Access {
                source,
                address,
                entry,
            } => return self.accessed(source, address, entry),
            TraceEvent::InvalidatePages => self.counts.invalidations += 1,
            TraceEvent::Fault => self.counts.faults += 1,
            TraceEvent::Port92(value) => {
                // A20 and reset bits; firmware writes no more than those
                if value >> 2 != 0 {
                    self.last_mark = Some(value >> 2);
                    self.held.push_back(Held::Mark(value >> 2));
                }
            }
        }
        Ok(())
    }

    /// The guest enters a function.
    fn called(&mut self, registers: Registers) -> Result<(), QemuError> {
        let Some(function) = self.symbols.at(registers.rip) else {
            return Ok(());
        };
        if let Some(kind) = function.kind() {
            // frames at or below this one on the same stack have returned
            self.calls
                .retain(|(rsp, _)| *rsp > registers.rsp || !same_stack(*rsp, registers.rsp));
            if self.calls.len() == CALLS_MOST {
                self.calls.remove(0);
            }
            self.calls.push((registers.rsp, kind));
            return Ok(());
        }
        // map_pages(domain, iova, paddr, pgsize, pgcount, prot, ..); unmap_pages(domain, iova,
        // pgsize, pgcount, ..)
        let bytes = match function {
            Function::UnmapPages => registers.rdx.checked_mul(registers.rcx),
            _ => registers.rcx.checked_mul(registers.r8),
        };
        let pages = bytes.unwrap_or(u64::MAX) >> 12;
        let range = IovaPage::new(registers.rsi >> 12)
            .and_then(|first| PageRange::new(first, PageCount(pages)))
            .ok_or(QemuError::Range {
                line: self.line,
                function,
                address: registers.rsi,
                pages,
            })?;
        let domain = match self.by_pointer.get(&registers.rdi) {
            Some(domain) => *domain,
            None => {
                let domain = self.new_domain()?;
                self.by_pointer.insert(registers.rdi, domain);
                domain
            }
        };
        let call = registers.fingerprint();
        let live = self.domains[domain].live.get(range.first().number());
        let repeated = match (function, live) {
            (Function::MapPages, Some(target)) => target.made_by == call,
            (Function::UnmapPages, None) => self.unmaps.contains(&call),
            _ => false,
        };
        if repeated {
            self.counts.repeated_dumps += 1;
            return Ok(());
        }
        if function == Function::MapPages {
            self.mapped(domain, range, registers)
        } else {
            if self.unmaps.len() == RECENT_UNMAPS {
                self.unmaps.pop_front();
            }
            self.unmaps.push_back(call);
            self.unmapped(domain, range, registers.gs);
            Ok(())
        }
    }

    fn mapped(
        &mut self,
        domain: usize,
        range: PageRange,
        registers: Registers,
    ) -> Result<(), QemuError> {
        let missing = |field| QemuError::Field {
            line: self.line,
            event: "register dump at map_pages",
            field,
        };
        let phys = PhysPage::new(registers.rdx >> 12).ok_or_else(|| missing("physical address"))?;
        let permission = match registers.r9 & 3 {
            1 => Permission::Read,
            2 => Permission::Write,
            3 => Permission::ReadWrite,
            _ => return Err(missing("permission")),
        };
        let enclosing =
            |(rsp, _): &&(u64, Kind)| *rsp > registers.rsp && same_stack(*rsp, registers.rsp);
        let kind = self
            .calls
            .iter()
            .rev()
            .find(enclosing)
            .map(|(_, kind)| *kind);
        let shift = phys.number().wrapping_sub(range.first().number());
        let direct = kind.is_none() && shift == 0;
        let target = Target {
            shift,
            permission,
            direct,
            made_by: registers.fingerprint(),
        };
        self.domains[domain]
            .live
            .insert(range.first().number(), range.last().number(), target);
        self.counts.maps += 1;
        self.counts.mapped_pages += range.pages().0;
        if direct {
            self.counts.direct_maps += 1;
            self.counts.direct_pages += range.pages().0;
            return Ok(());
        }
        let event = Event::Map {
            device: DeviceId(0),
            range,
            permission,
            phys: Some(phys),
            kind,
            extent: None,
        };
        let at = self.at(registers.gs);
        self.hold(domain, event, at);
        Ok(())
    }

    fn unmapped(&mut self, domain: usize, range: PageRange, gs: u64) {
        let mut direct = false;
        let live = &mut self.domains[domain].live;
        live.take(
            range.first().number(),
            range.last().number(),
            |_, _, target| {
                direct |= target.direct;
            },
        );
        self.counts.unmaps += 1;
        self.counts.unmapped_pages += range.pages().0;
        if !direct {
            let device = DeviceId(0);
            let at = self.at(gs);
            self.hold(domain, Event::Unmap { device, range }, at);
        }
    }

    fn accessed(&mut self, source: u16, address: u64, entry: u64) -> Result<(), QemuError> {
        self.counts.accesses += 1;
        let Some(page) = IovaPage::new(address >> 12) else {
            return Ok(()); // never: an address has 64 bits
        };
        let (domain, target) = self.domain_of(source, page, entry)?;
        if target.is_some_and(|target| target.direct) {
            self.counts.direct_accesses += 1;
            return Ok(());
        }
        let direction = target.and_then(|target| match target.permission {
            Permission::Read => Some(Direction::Read),
            Permission::Write => Some(Direction::Write),
            Permission::ReadWrite => None,
        });
        let event = Event::Access {
            device: DeviceId(0),
            page,
            direction,
        };
        self.hold(domain, event, None);
        Ok(())
    }

    /// The domain that the access went through, and what it maps the page to. Names the domain if
    /// it has no name.
    fn domain_of(
        &mut self,
        source: u16,
        page: IovaPage,
        entry: u64,
    ) -> Result<(usize, Option<Target>), QemuError> {
        let target = |domain: &Domain| {
            let found = domain.live.get(page.number())?;
            leads_to(entry, page.number().wrapping_add(found.shift)).then_some(found)
        };
        let known = self.by_source.get(&source).copied();
        let known_target = known.and_then(|known| target(&self.domains[known]));
        if let (Some(known), Some(_)) = (known, known_target) {
            return Ok((known, known_target));
        }
        // nameless ones first: a shared domain is rarer than a new one
        let mut fitting: Vec<usize> = (0..self.domains.len())
            .filter(|index| target(&self.domains[*index]).is_some())
            .collect();
        fitting.sort_by_key(|index| !self.domains[*index].name.is_empty());
        let domain = match (fitting.first(), known) {
            (Some(found), _) => *found,
            (None, Some(known)) => known,
            (None, None) => self.new_domain()?,
        };
        self.by_source.insert(source, domain);
        let found = &mut self.domains[domain];
        if found.name.is_empty() {
            let (bus, device, function) = (source >> 8, source >> 3 & 0x1f, source & 7);
            found.name = format!("{bus:02x}:{device:02x}.{function}");
        }
        Ok((domain, target(&self.domains[domain])))
    }

    fn new_domain(&mut self) -> Result<usize, QemuError> {
        if self.domains.len() == DOMAINS_MOST {
            return Err(QemuError::TooManyDomains { line: self.line });
        }
        self.domains.push(Domain {
            name: String::new(),
            live: Runs::default(),
        });
        Ok(self.domains.len() - 1)
    }

    fn at(&mut self, gs: u64) -> Option<Stamp> {
        if !self.cpus.contains_key(&gs) && self.cpus.len() == CPUS_MOST {
            return None;
        }
        let next = self.cpus.len() as u32;
        let cpu = *self.cpus.entry(gs).or_insert(next);
        self.now_ns.map(|nanoseconds| Stamp {
            nanoseconds,
            cpu: Some(cpu),
            task: None,
        })
    }

    fn hold(&mut self, domain: usize, event: Event, at: Option<Stamp>) {
        self.held.push_back(Held::Event { domain, event, at });
    }

    /// Hands out what is no longer held.
    fn release(
        &mut self,
        out: &mut dyn FnMut(Item<'_>) -> io::Result<()>,
    ) -> Result<(), QemuError> {
        while let Some(held) = self.held.front() {
            match *held {
                Held::Mark(number) => out(Item::Mark(number))?,
                Held::Event { domain, event, at } => {
                    if self.domains[domain].name.is_empty() {
                        if self.held.len() <= HELD_MOST {
                            return Ok(());
                        }
                        self.name_oldest();
                    }
                    if let Some(at) = at
                        && self.said != Some(at)
                    {
                        out(Item::At(at))?;
                        self.said = Some(at);
                    }
                    let device = &self.domains[domain].name;
                    out(Item::Event { device, event })?;
                }
            }
            self.held.pop_front();
        }
        Ok(())
    }

    /// Gives up waiting for an access through the domain of the oldest event.
    fn name_oldest(&mut self) {
        if let Some(Held::Event { domain, .. }) = self.held.front()
            && self.domains[*domain].name.is_empty()
        {
            self.domains[*domain].name = format!("domain{domain}");
        }
    }
}

fn same_stack(a: u64, b: u64) -> bool {
    a.abs_diff(b) < STACK_BYTES
}

/// Whether a second-stage entry leads to this physical page; of a large page (bit 7)
/// it gives the first.
fn leads_to(entry: u64, phys_page: u64) -> bool {
    let first = entry >> 12 & ((1 << 40) - 1);
    let large = entry & 1 << 7 != 0;
    first == phys_page || large && (first == phys_page & !0x1ff || first == phys_page & !0x3ffff)
}

#[cfg(test)]
mod tests;
