// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Units whose walks do not snoop caches: they see what was written back, and nothing else.
//!
//! The platform keeps memory twice. CPUs use the host's arena; the unit reads a *shadow* into which
//! only `publish` copies. A frame's shadow begins as garbage: each word an entry that leads to the
//! frame itself.

use crate::BY;
use crate::suite::rig::*;
use ioatlas_dma::{domain::*, platform::*, table::Format, units::*};
use ioatlas_host::Host;
use std::{
    sync::{
        Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

type Word = <Host as Platform>::A64;
const WORDS: usize = 512;
/// The third frame of bring-up: the unit writes the queue's status there, and its writes are
/// snooped.
const STATUS: PhysPage = PhysPage(2);

/// A host under a unit that does not snoop.
pub struct Incoherent {
    host: Host,
    shadow: Vec<Word>,
    /// A copy is of one moment, as a cache line's write-back is.
    copying: Mutex<()>,
    stop: Mutex<Option<Stop>>,
}

/// The next `publish` of that many words says that it is there, and waits before it copies.
struct Stop {
    words: usize,
    here: Sender<()>,
    go: Receiver<()>,
}

/// The other side of a stop.
struct Stopped {
    here: Receiver<()>,
    go: Sender<()>,
}

impl Stopped {
    /// Returns once a thread waits, unless `waiter` ends without.
    fn until_there<T>(&self, waiter: &thread::ScopedJoinHandle<'_, T>) {
        while self.here.try_recv().is_err() {
            assert!(!waiter.is_finished(), "it wrote nothing back");
            thread::yield_now();
        }
    }
}

impl Incoherent {
    fn stop_at(&self, words: usize) -> Stopped {
        let ((here, there), (release, go)) = (channel(), channel());
        let stop = Stop { words, here, go };
        *locked(&self.stop) = Some(stop);
        Stopped {
            here: there,
            go: release,
        }
    }
    fn pass(&self, words: usize) {
        let here = {
            let mut stop = locked(&self.stop);
            stop.take_if(|stop| stop.words == words)
        };
        if let Some(stop) = here {
            let _ = stop.here.send(());
            let _ = stop.go.recv();
        }
    }
}

// SAFETY: the host's, and words.
unsafe impl DedicatedMemory for Incoherent {}

// SAFETY: the host's; what the unit sees of a word is what was written back, as `publish` does.
unsafe impl Platform for Incoherent {
    type A64 = Word;
    type Lock<T: Send> = <Host as Platform>::Lock<T>;
    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        self.host.pinned(f)
    }
    fn cpus(&self) -> usize {
        self.host.cpus()
    }
    fn frame_alloc(&self) -> Option<FreshFrame> {
        let fresh = self.host.frame_alloc()?;
        let garbage = fresh.page().addr().0 | 3; // both formats: readable, writable
        let at = fresh.page().0 as usize * WORDS;
        for word in &self.shadow[at..at + WORDS] {
            Atomic64::store(word, garbage, Ordering::Relaxed);
        }
        Some(fresh)
    }
    fn frame_free(&self, by: Authority, frame: FreshFrame) {
        self.host.frame_free(by, frame);
    }
    fn entries<'f>(&'f self, by: Authority, frame: FrameRef<'f>) -> &'f [Word] {
        self.host.entries(by, frame)
    }
    fn publish(&self, entries: &[Word]) {
        self.pass(entries.len());
        let start = self.host.word(BY, PhysPage(0), 0).expect("a frame");
        let bytes = entries.as_ptr().addr() - core::ptr::from_ref(start).addr();
        let at = bytes / size_of::<Word>();
        let _copying = locked(&self.copying);
        for (word, copy) in entries.iter().zip(&self.shadow[at..]) {
            Atomic64::store(
                copy,
                Atomic64::load(word, Ordering::Acquire),
                Ordering::Release,
            );
        }
    }
    fn fence(&self, order: Ordering) {
        self.host.fence(order);
    }
    fn relax(&self) {
        self.host.relax();
    }
    fn heap(&self) -> Option<&dyn Heap> {
        self.host.heap()
    }
    fn unique(&self) -> u64 {
        self.host.unique()
    }
}

impl PhysMemory<Self> for Incoherent {
    fn word(&self, by: Authority, page: PhysPage, index: usize) -> Option<&Word> {
        let here = self.host.word(by, page, index)?;
        if page == STATUS {
            return Some(here);
        }
        self.shadow.get(page.0 as usize * WORDS + index)
    }
}

copies_by!(Incoherent, host);

impl Base for Incoherent {
    fn make(frames: usize) -> Self {
        let host = Host::make(frames);
        Incoherent {
            shadow: (0..frames * WORDS).map(|_| Atomic64::new(0)).collect(),
            host,
            copying: Mutex::new(()),
            stop: Mutex::new(None),
        }
    }
    fn frames_in_use(&self) -> usize {
        self.host.frames_in_use()
    }
    fn on_another_cpu(&self, f: impl FnOnce() + Send) {
        self.host.on_another_cpu(f);
    }
}

fn rig<F: Format>() -> Rig<Incoherent> {
    Rig::with::<F>(96, |unit| unit.features.coherent = false)
}

/// Reads every page of `range` and the ones beside it, by the NIC: nothing is mapped beside.
fn reads(rig: &Rig<Incoherent>, range: IovaRange, to: &[u64], context: &str) {
    let read = |page| rig.access(page, AccessKind::Read);
    for (page, to) in range.iter().zip(to) {
        assert_eq!(read(page), Some(PhysPage(*to)), "P14: {context}: {page}");
    }
    assert_eq!(read(range.end()), None, "{context}: after {range}");
    if range.first.0 > 0 {
        let before = IovaPage(range.first.0 - 1);
        assert_eq!(read(before), None, "{context}: before {range}");
    }
}

fn ended(rig: &Rig<Incoherent>, domain: &Dom<Incoherent, impl Format>, range: IovaRange) {
    domain.domain().flush().expect("flushed");
    for page in range.iter() {
        let reached = rig.access(page, AccessKind::Read);
        assert_eq!(reached, None, "{page} is unmapped and flushed");
    }
}

/// Maps and ends single pages, lists, whole tables and consistent memory, with devices coming and
/// going.
fn lifecycle<F: Format>() {
    for design in designs() {
        let context = &*name(&design);
        let rig = rig::<F>();
        let domain = rig.domain::<F>(design);
        let d = Direction::ToDevice;
        for round in 0..3 {
            let to = 0x100 + 0x40 * round;
            let at = |page: u64, pages| {
                let mapping = domain.map_at(IovaPage(page).addr(), buffer(to, pages), d);
                mapping.expect("free")
            };
            let pages: Vec<u64> = (to..to + 2 * span::<F>()).collect();
            // a page, an edge between two tables, a whole table, one and a half
            let table = span::<F>();
            for (first, many) in [
                (2, 1),
                (table - 1, 2),
                (2 * table, table),
                (table, 3 * table / 2),
            ] {
                let mapping = at(first, many);
                let range = mapping.range();
                reads(&rig, range, &pages, context);
                domain.attach(DISK).expect("attached");
                let by_disk = || rig.access_by(DISK, range.first, AccessKind::Read);
                assert_eq!(by_disk(), Some(PhysPage(to)), "P14: {context}");
                domain.detach(DISK).expect("detached");
                assert_eq!(by_disk(), None, "P1: {context}: detached");
                match round {
                    0 => domain.unmap(mapping).expect("unmapped"),
                    _ => domain.unmap_raw(mapping).expect("unmapped"),
                }
                ended(&rig, &domain, range);
            }
            let list = [buffer(to, 2), buffer(to + 8, 1), buffer(to + 4, 1)];
            let mapping = domain.map_list(&list, d).expect("room");
            let range = mapping.range();
            reads(&rig, range, &[to, to + 1, to + 8, to + 4], context);
            domain.unmap(mapping).expect("unmapped");
            ended(&rig, &domain, range);
            let memory = domain.alloc_consistent(ByteCount(2 * GRANULE));
            let memory = memory.expect("room");
            let frames: Vec<u64> = memory.frames().iter().map(|f| f.page().0).collect();
            let range = IovaRange::new(memory.iova().page(), PageCount(2));
            reads(&rig, range, &frames, context);
            domain.free_consistent(memory).expect("freed");
            ended(&rig, &domain, range);
        }
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

#[test]
fn all_that_the_unit_needs_is_written_back_on_toy_tables() {
    lifecycle::<Small>();
}

#[cfg(not(ioatlas_killers))]
#[test]
fn all_that_the_unit_needs_is_written_back_on_vtd_tables() {
    lifecycle::<Vtd>();
}

/// Maps one page of two under one leaf table, and has the NIC read it at once.
fn map_and_read<F: Format>(
    rig: &Rig<Incoherent>,
    domain: &Dom<Incoherent, F>,
    page: u64,
) -> (Mapping, Option<PhysPage>) {
    let at = IovaPage(page);
    let mapping = domain.map_at(at.addr(), buffer(0x100 + page, 1), Direction::ToDevice);
    let mapping = mapping.expect("free");
    (mapping, rig.access(at, AccessKind::Read))
}

/// Two threads, one table that comes and goes between the rounds.
fn threads<F: Format>() {
    for design in designs() {
        let design = design.wait_limit(PATIENT);
        let rig = rig::<F>();
        for _ in 0..20 {
            let domain = rig.domain::<F>(design);
            thread::scope(|scope| {
                let (rig, domain) = (&rig, &domain);
                for page in [20, 21] {
                    scope.spawn(move || {
                        ioatlas_host::register();
                        for _ in 0..4 {
                            let (mapping, reached) = map_and_read(rig, domain, page);
                            assert_eq!(reached, Some(PhysPage(0x100 + page)), "P14");
                            domain.unmap(mapping).expect("unmapped");
                        }
                    });
                }
            });
            rig.close(domain, &[NIC]);
        }
        rig.end();
    }
}

#[test]
fn two_threads_share_tables_on_toy_tables() {
    threads::<Small>();
}

#[cfg(not(ioatlas_killers))]
#[test]
fn two_threads_share_tables_on_vtd_tables() {
    threads::<Vtd>();
}

/// The thread that added a table is slow to write its entry back; a neighbour whose map returns
/// meanwhile must not wait for that.
fn slow_winner<F: Format>(lost: Lost) {
    let rig = rig::<F>();
    let domain = rig.domain::<F>(DomainConfig::default());
    let (rig_, d) = (&rig, &domain);
    let platform = rig.failing().inner();
    let reached = thread::scope(|scope| {
        // the loser has seen no table, and made its own
        let loser = (lost == Lost::TheRace).then(|| {
            let stopped = platform.stop_at(span::<F>() as usize);
            let loser = scope.spawn(move || {
                ioatlas_host::register();
                map_and_read(rig_, d, 21)
            });
            stopped.until_there(&loser);
            (loser, stopped)
        });
        let slow = platform.stop_at(1);
        let winner = scope.spawn(move || {
            ioatlas_host::register();
            map_and_read(rig_, d, 20)
        });
        slow.until_there(&winner);
        let second = match loser {
            Some((loser, stopped)) => {
                let _ = stopped.go.send(());
                loser.join()
            }
            None => Ok(map_and_read(rig_, d, 21)),
        };
        let _ = slow.go.send(());
        [second, winner.join()]
    });
    for (result, page) in reached.into_iter().zip([21, 20]) {
        let (mapping, reached) = result.expect("mapped");
        assert_eq!(reached, Some(PhysPage(0x100 + page)), "P14");
        domain.unmap(mapping).expect("unmapped");
    }
    rig.close(domain, &[NIC]);
    rig.end();
}

#[derive(PartialEq)]
enum Lost {
    /// The table was there already.
    Nothing,
    /// Both made a table.
    TheRace,
}

#[test]
fn a_neighbour_writes_back_the_entry_it_finds() {
    slow_winner::<Small>(Lost::Nothing);
    slow_winner::<Vtd>(Lost::Nothing);
}

#[test]
fn the_loser_of_a_race_writes_back_the_winners_entry() {
    slow_winner::<Small>(Lost::TheRace);
    slow_winner::<Vtd>(Lost::TheRace);
}
