// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A software VT-d unit: what the hardware between a device and memory does, step by step.
//!
//! # Theory
//!
//! The unit has one lock, over everything it holds: registers, caches, accesses in flight, the
//! queue, fault records. It never touches memory with the lock held. Each step of a walk, and each
//! step of the queue, is one read (or write) of memory and then one section under the lock; both
//! are switch points of the platform, so a schedule can put anything between any two of them. What
//! happens under the lock is atomic, and the order of those sections is *the* order of events: an
//! [`Observer`] is told in it.
//!
//! Stale translations arise as in hardware. A walk reads an entry, is overtaken by unmap and
//! invalidation, and fills the cache afterwards. What prevents that is the drain that the
//! descriptor asks for: it marks the accesses in flight that the invalidation concerns, so that
//! they fill nothing, and the queue goes no further until they have ended. An invalidation that
//! asks for none removes entries and is done, and the walk it overlooked fills what it read.
//! Context-cache invalidations have no drain bits: they keep walks in flight from caching what they
//! read of a context entry, and wait for none; the IOTLB invalidation that must follow (VT-d 4.1
//! §6.5.3.1) does.
//!
//! What else a unit can be is described where it is modelled: large leaves and absent entries
//! (caching mode) in `caches`, write buffers in `write_buffer`, devices that keep translations in
//! [`device`](crate::device).
//!
//! Memory ordering: entries are read with acquire. A register write enters the lock, so what the
//! CPU wrote before it happens before all that the unit does because of it; a wait descriptor's
//! status is written with release.
//!
//! Not handled: interrupt remapping, page requests, first-stage and scalable-mode tables.
//! Clearing GSTS.TES drains nothing, nor does changing the root table unless the unit offers to
//! (ESRTPS).

use crate::{
    active::{InFlightSet, Pointer, Shape},
    caches::{Caches, LeftBehind},
    config::*,
    device::Devices,
    fault::{FaultRecorder, Faults},
    observe::*,
    queue::Queue,
    registers::RegisterFile,
    walk::InFlight,
    write_buffer::{Seen, WriteBufferState},
};
use core::fmt;
use ioatlas_dma::{
    platform::{Authority, Lock, PhysMemory, Platform},
    units::*,
};
use std::sync::Arc;

/// That of hardware: registers, tables and descriptors say where a unit and devices behind it read
/// and write, and what writes those answers for it.
#[allow(unsafe_code)] // a promise
// SAFETY: a unit reads its tables and its queue, and writes what a descriptor says; a device
// accesses what tables translate to. A driver keeps that to memory of its own, or lent to it.
pub(crate) const HARDWARE: Authority = unsafe { Authority::assume() };

/// A software VT-d unit in front of the memory `M`.
pub struct SoftUnit<P: Platform, M: PhysMemory<P>> {
    pub(crate) memory: Arc<M>,
    pub(crate) geometry: Geometry,
    pub(crate) features: Features,
    pub(crate) state: P::Lock<State>,
    /// Where writes are buffered: what walks see. Never locked together with `state`.
    pub(crate) seen: Option<P::Lock<Seen>>,
}

/// Everything under the unit's lock.
pub(crate) struct State {
    pub(crate) geometry: Geometry,
    pub(crate) features: Features,
    pub(crate) prefetch: u32,
    eviction: Option<Eviction>,
    random: u64,
    pub(crate) registers: RegisterFile,
    pub(crate) write_buffer: WriteBufferState,
    pub(crate) queue: Queue,
    pub(crate) caches: Caches,
    pub(crate) left: LeftBehind,
    pub(crate) devices: Devices,
    pub(crate) active: InFlightSet,
    pub(crate) faults: FaultRecorder,
    pub(crate) stats: Stats,
    pub(crate) accesses_named: u64,
    pub(crate) invalidations_named: u64,
    now: Moment,
    observer: Option<Arc<dyn Observer>>,
}

/// A defect to inject: what real units have been seen to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Injection {
    /// The next so many IOTLB entries that an invalidation names survive it (P13).
    LeaveTranslations(u32),
    /// The same for walk-cache entries.
    LeaveWalkEntries(u32),
    /// The next so many invalidations that ask for a drain neither mark nor wait.
    IgnoreDrain(u32),
    /// The next so many descriptors are refused, whatever they are (IQE).
    QueueErrors(u32),
}

/// What a unit holds, all invariants checked.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UnitCensus {
    pub contexts: usize,
    /// IOTLB entries, large leaves included.
    pub translations: usize,
    /// Of those, large leaves.
    pub large_leaves: usize,
    /// Entries remembered as absent or faulty, those of the context cache not included.
    pub absent: usize,
    /// Entries of device TLBs.
    pub device_translations: usize,
    /// Walk-cache entries, all levels.
    pub walk_entries: usize,
    pub in_flight: usize,
    /// Descriptors between head and tail.
    pub queued: u32,
}

impl State {
    /// Tells the observer, if any. Each event is a moment of its own.
    pub(crate) fn emit(&mut self, event: Event) -> Moment {
        self.now.0 += 1;
        if let Some(observer) = &self.observer {
            observer.event(self.now, &event);
        }
        self.now
    }
    pub(crate) fn shape(&self) -> Shape {
        Shape {
            geometry: self.geometry,
            largest_leaf: self.features.largest_leaf,
        }
    }
    /// The moment that the next event will have.
    pub(crate) fn next_moment(&self) -> Moment {
        Moment(self.now.0 + 1)
    }
    /// Evicts an entry at random, if it is the turn for one.
    pub(crate) fn maybe_evict(&mut self) {
        let Some(eviction) = self.eviction else {
            return;
        };
        let turn = u64::from(eviction.one_in.get());
        if self.next_random().is_multiple_of(turn) {
            let pick = self.next_random();
            self.stats.evicted += self.caches.evict(pick);
        }
    }
    /// SplitMix64 (Steele, Lea and Flood, OOPSLA'14): any seed will do, 0 too. No library's, for
    /// these lines are all that a crate without the standard library needs.
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

impl<P: Platform, M: PhysMemory<P>> SoftUnit<P, M> {
    /// A unit after reset: translation and queue disabled, caches empty.
    ///
    /// # Errors
    /// A number in `config` does not fit.
    pub fn new(memory: Arc<M>, config: &UnitConfig) -> Result<Self, ConfigError> {
        Self::build(memory, config, None)
    }
    /// The same, watched by `observer`.
    ///
    /// # Errors
    /// A number in `config` does not fit.
    pub fn observed(
        memory: Arc<M>,
        config: &UnitConfig,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, ConfigError> {
        Self::build(memory, config, Some(observer))
    }

    fn build(
        memory: Arc<M>,
        config: &UnitConfig,
        observer: Option<Arc<dyn Observer>>,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        let (geometry, features) = (config.geometry, config.features);
        let state = State {
            geometry,
            features,
            prefetch: config.caches.prefetch,
            eviction: config.caches.eviction,
            random: config.caches.eviction.map_or(0, |e| e.seed),
            registers: RegisterFile::new(config.registers),
            write_buffer: WriteBufferState::default(),
            queue: Queue::new(
                config.processing,
                config.wait_reports,
                config.registers.restart,
            ),
            caches: Caches::new(geometry, &features, &config.caches),
            left: LeftBehind::default(),
            devices: Devices::new(&config.devices),
            active: InFlightSet::default(),
            faults: FaultRecorder::new(config.fault_records, config.registers.collapse),
            stats: Stats::default(),
            accesses_named: 0,
            invalidations_named: 0,
            now: Moment(0),
            observer,
        };
        Ok(SoftUnit {
            memory,
            geometry,
            features,
            state: P::Lock::new(state),
            seen: Seen::new::<P>(features.write_buffers),
        })
    }

    /// Begins an access: looks into the caches. It is in flight, and drained,
    /// until finished or dropped.
    pub fn begin(&self, source: SourceId, page: IovaPage, kind: AccessKind) -> InFlight<'_, P, M> {
        InFlight::begin(self, source, page, kind)
    }
    /// Begins an access and finishes it.
    pub fn access(&self, source: SourceId, page: IovaPage, kind: AccessKind) -> Access {
        self.begin(source, page, kind).finish()
    }

    /// The shape of a walk.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }
    /// What the unit can do, as configured.
    pub fn features(&self) -> Features {
        self.features
    }
    /// What was counted so far.
    pub fn stats(&self) -> Stats {
        self.state.with(|s| s.stats)
    }
    /// Reads and clears the fault records and their overflow, as software would by the registers.
    pub fn take_faults(&self) -> Faults {
        self.state.with(|s| s.take_faults())
    }
    /// How many accesses are in flight.
    pub fn in_flight(&self) -> usize {
        self.state.with(|s| s.active.iter().count())
    }
    /// What the IOTLB holds for a page, by a large leaf too. Not a use.
    pub fn iotlb_holds(&self, domain: DomainId, page: IovaPage) -> Option<(PhysPage, Perm)> {
        self.state
            .with(|s| s.caches.peek(domain, page))
            .map(|t| (t.to, t.perm))
    }
    /// Whether a walk-cache entry, a context-cache entry or a walk in flight points to the
    /// table in `frame` (P4).
    ///
    /// A walk counts from the moment at which [`Event::Pointed`] says so; what it has just read
    /// from memory and not yet taken in does not.
    pub fn holds_pointer_to(&self, frame: PhysPage) -> bool {
        self.state
            .with(|s| s.caches.point_to(frame) || s.active.points_to(frame))
    }
    /// From where translations lead to `frame`: those in the IOTLB, by large leaves too, and in
    /// the TLBs of devices.
    pub fn leaves_to(&self, frame: PhysPage) -> Vec<(DomainId, IovaPage)> {
        self.state.with(|s| {
            let pages = s.caches.iotlb.iter();
            let pages = pages.filter(|t| t.to == frame).map(|t| (t.domain, t.page));
            let large = s.caches.large.iter();
            let large = large.filter_map(|(level, (domain, prefix), leaf)| {
                let span = s.geometry.leaf_span_lg2(level);
                let offset = frame.0.checked_sub(leaf.to.0)?;
                let within = offset >> span == 0;
                within.then(|| (*domain, IovaPage((prefix << span) + offset)))
            });
            let devices = s.devices.iter();
            let devices = devices.filter(|(.., held)| held.to == frame);
            let devices = devices.map(|(_, page, held)| (held.domain, *page));
            pages.chain(large).chain(devices).collect()
        })
    }
    /// Makes the unit misbehave as `injection` says.
    pub fn inject(&self, injection: Injection) {
        self.state.with(|s| match injection {
            Injection::LeaveTranslations(n) => s.left.translations = n,
            Injection::LeaveWalkEntries(n) => s.left.walks = n,
            Injection::IgnoreDrain(n) => s.queue.ignore_drains = n,
            Injection::QueueErrors(n) => s.queue.refuse_next = n,
        })
    }

    /// Checks every invariant of caches, accesses in flight and queue.
    ///
    /// # Errors
    /// A sentence that names the first that does not hold.
    pub fn audit(&self) -> Result<UnitCensus, String> {
        self.state.with(|s| {
            s.caches.audit()?;
            s.devices.audit()?;
            s.queue
                .audit(s.active.blocking() - s.registers.requests.pending())?;
            for active in s.active.iter() {
                let aperture = s.geometry.aperture_lg2();
                if matches!(active.pointer, Pointer::Table(..)) && active.page.0 >> aperture != 0 {
                    return Err(format!("access {} walks beyond the aperture", active.id.0));
                }
            }
            Ok(UnitCensus {
                contexts: s.caches.context.len(),
                translations: s.caches.iotlb.iter().count() + s.caches.large.iter().count(),
                large_leaves: s.caches.large.iter().count(),
                absent: s.caches.absent.len(),
                device_translations: s.devices.iter().count(),
                walk_entries: s.caches.walk_entries().count(),
                in_flight: s.active.iter().count(),
                queued: s.queue.queued(),
            })
        })
    }
}

/// The caches' contents, one entry a line, in no particular order.
impl<P: Platform, M: PhysMemory<P>> fmt::Display for SoftUnit<P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Formatting may block on a pipe, so not under the lock.
        let text = self.state.with(|s| {
            use fmt::Write;
            let mut text = String::new();
            let held = s.caches.iotlb.iter().count();
            let _ = write!(
                text,
                "{}; IOTLB {held}/{}",
                s.queue,
                s.caches.iotlb.capacity()
            );
            for (level, (held, room)) in (2..).zip(s.caches.walk_fill()) {
                let _ = write!(text, ", L{level} {held}/{room}");
            }
            let contexts = &s.caches.context;
            let _ = write!(
                text,
                ", contexts {}/{}",
                contexts.len(),
                contexts.capacity()
            );
            let _ = write!(text, ", {} in flight", s.active.iter().count());
            for (source, context) in contexts.iter() {
                let _ = match context {
                    Ok(context) => write!(text, "\n  {source} -> domain {}", context.domain),
                    Err(bad) => write!(text, "\n  {source}: {}", bad.reason),
                };
            }
            for t in s.caches.iotlb.iter() {
                let _ = write!(
                    text,
                    "\n  domain {} page {} -> {} {:?}",
                    t.domain, t.page, t.to, t.perm
                );
            }
            for (level, (domain, prefix), leaf) in s.caches.large.iter() {
                let page = IovaPage(prefix << s.geometry.leaf_span_lg2(level));
                let _ = write!(
                    text,
                    "\n  domain {domain} L{level} leaf from page {page} -> {}",
                    leaf.to
                );
            }
            for (source, page, held) in s.devices.iter() {
                let (to, perm) = (held.to, held.perm);
                let _ = write!(text, "\n  {source} keeps page {page} -> {to} {perm:?}");
            }
            for (level, (domain, prefix), entry) in s.caches.walk_entries() {
                let page = IovaPage(prefix << s.geometry.table_span_lg2(level - 1));
                let _ = write!(
                    text,
                    "\n  domain {domain} L{level} from page {page} -> table {}",
                    entry.to
                );
            }
            text
        });
        f.write_str(&text)
    }
}
