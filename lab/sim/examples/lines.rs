// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One sequence of pairs, on this machine or on a simulated CPU: to compare which cache lines it
//! touches. See `ci/lines-check.sh`.
//!
//! `lines native SKIP N` runs it here, and says which addresses to look for in a trace of memory:
//! each block that was allocated, and three words that are written when the ring is full, where
//! each of the last N pairs begins, and where the last ends. `lines traced PLACES TRACE` says which
//! lines these pairs touch, from what `native` has printed and the trace of it;
//! `lines simulated SKIP N` says so of the simulator. The sequence: a ring of [`RING`] mappings is
//! filled, SKIP pairs replace the oldest one each, and so do N more.
//!
//! **What counts** is the same on both sides. A line counts if it lies in an allocated block or in
//! a page-table frame, and was written since the ring was full. What lies on the stack is private
//! (the ring itself does); what is never written, as the address and length of an array, stays in
//! every CPU's cache for good. Both are printed as *constant* where they are in a block.

#![allow(clippy::disallowed_types)] // the allocator's notes and the marks are no part of what is compared

use ioatlas_dma::{
    design::Design,
    domain::{AllocatorConfig, DeferredConfig, Domain, DomainConfig, Mapping, PolicyConfig},
    iova::MagazineConfig,
    platform::{DedicatedMemory, Platform},
    table::fmt::VtdSecond48,
    translator::{Paged, Uncached},
    units::*,
};
use ioatlas_host::{Host, HostConfig, register};
use ioatlas_sim::timing::{Cycles, Machine, MachineConfig, Params, Span, Topology};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{BufRead, BufReader},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// Mappings that are outstanding.
const RING: usize = 256;
const FRAMES: usize = 1 << 6;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Written when the ring is full, where each pair that counts begins, and where the last ends.
static FILLED: AtomicU64 = AtomicU64::new(0);
static BEGIN: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, and the blocks that it gave.
struct Noting;

const NOTED: usize = 1 << 14;
static BLOCKS: [(AtomicUsize, AtomicUsize); NOTED] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; NOTED];
static BLOCKS_LEN: AtomicUsize = AtomicUsize::new(0);

fn note(at: usize, bytes: usize) {
    let slot = BLOCKS_LEN.fetch_add(1, Ordering::Relaxed);
    if let Some((address, len)) = BLOCKS.get(slot) {
        address.store(at, Ordering::Relaxed);
        len.store(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let block = unsafe { System.alloc(layout) };
        note(block.addr(), layout.size());
        block
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let block = unsafe { System.alloc_zeroed(layout) };
        note(block.addr(), layout.size());
        block
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Noting = Noting;

type Dom<P> = Domain<P, Paged<P, VtdSecond48, Arc<Uncached<P>>>>;

fn design() -> Design {
    let magazine = AllocatorConfig::Magazine(MagazineConfig::DEFAULT);
    let policy = PolicyConfig::DeferredPerCpu(DeferredConfig::default());
    DomainConfig::new(magazine, policy).into()
}

fn domain<P: Platform>(platform: Arc<P>) -> Dom<P> {
    let Design { domain, tables } = design();
    let unit = Arc::new(Uncached::new());
    let tables = Paged::new(&platform, unit, tables).expect("a root table");
    Domain::new(platform, tables, domain).expect("a domain")
}

/// A ring of mappings, each of one page.
struct Ring<'d, P: DedicatedMemory> {
    domain: &'d Dom<P>,
    held: [Option<Mapping>; RING],
    next: usize,
}

impl<'d, P: DedicatedMemory> Ring<'d, P> {
    fn new(domain: &'d Dom<P>) -> Self {
        Ring {
            domain,
            held: [const { None }; RING],
            next: 0,
        }
    }
    fn replace(&mut self) {
        let slot = &mut self.held[self.next % RING];
        if let Some(old) = slot.take() {
            self.domain.unmap(old).expect("a live mapping");
        }
        let page = PhysPage((1 << 20) + self.next as u64);
        let mapped = self
            .domain
            .map(PhysRange::page(page), Direction::FromDevice);
        *slot = Some(mapped.expect("room"));
        self.next += 1;
    }
    fn run(&mut self, pairs: usize) {
        (0..pairs).for_each(|_| self.replace());
    }
}

fn native(skip: usize, pairs: usize) {
    let host = Host::new(HostConfig::default().frames(FRAMES).slots(2));
    register();
    let domain = domain(Arc::new(host));
    let mut ring = Ring::new(&domain);
    ring.run(RING);
    FILLED.store(1, Ordering::SeqCst);
    ring.run(skip);
    for _ in 0..pairs {
        BEGIN.store(1, Ordering::SeqCst);
        ring.replace();
    }
    END.store(1, Ordering::SeqCst);
    let blocks = BLOCKS_LEN.load(Ordering::Relaxed);
    assert!(blocks <= NOTED, "{blocks} blocks are more than were noted");
    println!("filled {:x}", FILLED.as_ptr().addr());
    println!("begin {:x}", BEGIN.as_ptr().addr());
    println!("end {:x}", END.as_ptr().addr());
    for (at, len) in &BLOCKS[..blocks] {
        let (at, len) = (at.load(Ordering::Relaxed), len.load(Ordering::Relaxed));
        println!("block {at:x} {len}");
    }
    std::process::exit(0); // what is outstanding ends with the process
}

/// Lines by number, each with its name.
type Named = BTreeMap<usize, String>;

/// The lines that pairs `from..to` touch on a simulated CPU, and those of them that they write. The
/// ring is full before pair 0.
fn simulate(from: usize, to: usize) -> (Named, BTreeSet<usize>) {
    let config = MachineConfig {
        topology: Topology::of_eights(1),
        frames: FRAMES as u64,
        heap: None,
    };
    let machine = Machine::new(config, Params::default()).expect("a machine");
    let domain = domain(machine.platform().clone());
    let (begin, length) = (Cycles::from_ms(100), Cycles::from_ms(100));
    let run = machine.run(Span::fixed(begin, length), None, |cpu| {
        let mut ring = Ring::new(&domain);
        ring.run(RING + from);
        assert!(cpu.now() < begin, "what is skipped takes too long");
        cpu.idle_until(begin);
        assert!(cpu.running(), "the measured time has begun");
        ring.run(to - from);
        cpu.idle_until(Cycles(begin.0 + length.0));
        assert!(!cpu.running(), "and has ended");
        ring.held.into_iter().for_each(core::mem::forget);
    });
    let run = run.expect("a run");
    let written = run.lines.iter().filter(|line| line.writes > 0);
    let written = written.map(|line| line.line).collect();
    let named = run.lines.into_iter().map(|line| (line.line, line.name));
    (named.collect(), written)
}

fn simulated(skip: usize, pairs: usize) {
    let end = skip + pairs;
    let (_, written) = simulate(0, end);
    let changes = |line: &usize| written.contains(line);
    let (all, _) = simulate(skip, end);
    // lines have the same numbers in every run: that of the first access
    let each = (skip..end).map(|pair| simulate(pair, pair + 1).0);
    let each = each.map(|lines| lines.into_keys().filter(changes).count());
    said(
        pairs,
        each.sum(),
        all.keys().filter(|line| changes(line)).count(),
        all.len(),
    );
    for (line, name) in &all {
        let kind = if changes(line) { "changes" } else { "constant" };
        println!("{kind}: {name}");
    }
    std::process::exit(0);
}

/// `each`: lines that count, summed over the pairs; `all`: of all pairs together; `touched`: those
/// that do not count included.
fn said(pairs: usize, each: usize, all: usize, touched: usize) {
    println!(
        "pairs {pairs} each {each} all {all} constant {}",
        touched - all
    );
}

/// What `native` has printed: its marks, and blocks by address.
#[derive(Default)]
struct Places {
    filled: usize,
    begin: usize,
    end: usize,
    blocks: BTreeMap<usize, usize>,
}

fn places(text: &str) -> Option<Places> {
    let mut places = Places::default();
    for line in text.lines() {
        let mut words = line.split(' ');
        let (what, at) = (
            words.next()?,
            usize::from_str_radix(words.next()?, 16).ok()?,
        );
        match what {
            "filled" => places.filled = at,
            "begin" => places.begin = at,
            "end" => places.end = at,
            "block" => {
                places.blocks.insert(at, words.next()?.parse().ok()?);
            }
            _ => return None,
        }
    }
    Some(places)
}

/// How often a line was read and written by the pairs that count, and whether anything has written
/// it since the ring was full.
#[derive(Default)]
struct Touched {
    reads: usize,
    writes: usize,
    changes: bool,
}

/// What a trace has of lines in blocks.
#[derive(Default)]
struct Traced {
    lines: BTreeMap<usize, Touched>,
    /// Which of them each pair touches.
    pairs: Vec<BTreeSet<usize>>,
}

/// The lines of blocks that `trace` touches between the last two kinds of marks.
///
/// What `valgrind --tool=lackey --trace-mem=yes` writes: ` L`, ` S` or ` M` (load, store, both), an
/// address and a size.
fn lines_of(trace: impl BufRead, places: &Places) -> Traced {
    let mut seen = Traced::default();
    let (mut filled, mut counts) = (false, false);
    for line in trace.lines().map_while(Result::ok) {
        let mut words = line.split_whitespace();
        let (Some(kind), Some(place)) = (words.next(), words.next()) else {
            continue;
        };
        let place = place.split_once(',').and_then(|(at, len)| {
            let at = usize::from_str_radix(at, 16).ok()?;
            Some((at, len.parse::<usize>().ok()?))
        });
        let (true, Some((at, len))) = (matches!(kind, "L" | "S" | "M"), place) else {
            continue;
        };
        if kind != "L" && [places.filled, places.begin, places.end].contains(&at) {
            filled = true;
            counts = at == places.begin;
            if counts {
                seen.pairs.push(BTreeSet::new());
            }
            continue;
        }
        let block = places.blocks.range(..=at).next_back();
        let inside = block.is_some_and(|(start, bytes)| at < start + bytes);
        if !filled || !inside {
            continue;
        }
        for line in at / LINE..=(at + len - 1) / LINE {
            let touched = seen.lines.entry(line).or_default();
            touched.changes |= kind != "L";
            touched.reads += usize::from(counts && kind != "S");
            touched.writes += usize::from(counts && kind != "L");
            if let Some(pair) = seen.pairs.last_mut().filter(|_| counts) {
                pair.insert(line);
            }
        }
    }
    seen.lines.retain(|_, it| it.reads + it.writes > 0);
    seen
}

/// Says which lines of blocks the trace in file `trace` touches.
fn traced(places_file: &str, trace: &str) -> Option<()> {
    let places = places(&std::fs::read_to_string(places_file).ok()?)?;
    let trace = BufReader::new(File::open(trace).ok()?);
    let Traced { lines, pairs } = lines_of(trace, &places);
    let changes = |line: &usize| lines.get(line).is_some_and(|it| it.changes);
    let each = pairs.iter().flatten().filter(|line| changes(line)).count();
    let all = lines.keys().filter(|line| changes(line)).count();
    said(pairs.len(), each, all, lines.len());
    for (line, touched) in lines {
        let Touched { reads, writes, .. } = touched;
        let kind = if touched.changes {
            "changes"
        } else {
            "constant"
        };
        let last = (line + 1) * LINE - 1;
        let (start, bytes) = places.blocks.range(..=last).next_back()?;
        let offset = (line * LINE) as isize - *start as isize;
        println!("{kind}: {reads} read, {writes} written, {offset:+} in a block of {bytes} bytes");
    }
    Some(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &str| text.parse::<usize>().ok();
    match &arguments[..] {
        [how, places, trace] if how == "traced" => {
            if traced(places, trace).is_none() {
                eprintln!(
                    "lines: {places} and {trace} are not what `native` printed and its trace"
                );
                return ExitCode::FAILURE;
            }
        }
        [how, skip, pairs] => match (&**how, number(skip), number(pairs)) {
            ("native", Some(skip), Some(pairs)) => native(skip, pairs),
            ("simulated", Some(skip), Some(pairs)) => simulated(skip, pairs),
            _ => return ExitCode::from(2),
        },
        _ => {
            eprintln!("usage: lines native|simulated SKIP N, or lines traced PLACES TRACE");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
