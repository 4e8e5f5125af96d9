// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Runs operations of a cache and exits: what to count instructions and cache misses of.
//!
//! `count CASE N` fills the radix cache, warms up, and makes N operations. It reads no clock and
//! draws from fixed sequences, so what 2 N operations take beyond N is what N take:
//!
//! ```text
//! cargo build --release -p ioatlas-vhost --example count
//! valgrind --tool=callgrind --cache-sim=yes target/release/examples/count lookup/2048 100000
//! ```
//!
//! Cases: `lookup/ENTRIES` and `pair/ENTRIES` (an invalidation and an update of the same page),
//! entries of 4 KiB at pages that adjoin, none of which can be merged; `lookup48/ENTRIES`, over 48
//! bits; `guest-memory/ENTRIES`, 8 bytes read by `vm_memory::Bytes` from such pages; `mmap/PAGES`,
//! the same from vm-memory's own guest memory.

use ioatlas_dma::units::*;
use ioatlas_vhost::{
    guest_memory::{IovaMemory, MissChannel, Patience},
    *,
};
use std::{hint::black_box, process::ExitCode, sync::Arc};
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryMmap};

const PAGE: u64 = 4096;
/// Operations of a burst, as in the benchmark.
const PER_GUARD: usize = 32;
/// Operations before those that count.
const WARM_UP: usize = 20_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match &arguments[..] {
        [case, count] => run(case, count),
        _ => Err("usage: count CASE N, with a case like lookup/2048".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("count: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(case: &str, count: &str) -> Result<(), String> {
    let number = |text: &str| {
        let parsed: Result<usize, _> = text.parse();
        parsed.map_err(|e| format!("`{text}` is no number: {e}"))
    };
    let count = number(count)?;
    let (kind, entries) = case
        .split_once('/')
        .ok_or_else(|| format!("`{case}` is no case"))?;
    let many = number(entries)? as u64;
    match kind {
        "guest-memory" => return translated(many, WARM_UP + count),
        "mmap" => return mmap(many, WARM_UP + count),
        _ => {}
    }
    let mut random = Random(many);
    let mut pages: Vec<u64> = match kind {
        "lookup" | "pair" => (0..many).map(|n| 0x10_0000 + n).collect(),
        "lookup48" => (0..many).map(|_| random.next() >> 28).collect(),
        _ => {
            return Err(format!(
                "`{kind}` is neither lookup, lookup48, pair, guest-memory nor mmap"
            ));
        }
    };
    if pages.is_empty() {
        return Err("a cache of no entries".into());
    }
    random.shuffle(&mut pages);
    let cache = filled(&pages)?;
    match kind {
        "pair" => pairs(&cache, &pages, WARM_UP + count),
        _ => lookups(&cache, &pages, WARM_UP + count),
    }
}

/// Hosts of pages that follow one another do not, so nothing merges.
fn entry(page: u64) -> Entry {
    Entry {
        iova: Iova(page * PAGE),
        len: ByteCount(PAGE),
        host: HostAddr((page ^ 1) * PAGE),
        perm: Perm::ReadWrite,
    }
}

fn filled(pages: &[u64]) -> Result<Arc<RadixIotlb>, String> {
    let limits = Limits::default().runs(1 << 17).tables(1 << 17);
    let cache = RadixIotlb::new(limits);
    for page in pages {
        let _ = cache.update(entry(*page)).map_err(|e| e.to_string())?;
    }
    Ok(cache)
}

fn lookups(cache: &Arc<RadixIotlb>, pages: &[u64], count: usize) -> Result<(), String> {
    let mut random = Random(7);
    let mut reader = cache.reader().map_err(|e| e.to_string())?;
    for _ in 0..count / PER_GUARD {
        let guard = reader.pin();
        for _ in 0..PER_GUARD {
            let iova = Iova(pages[random.below(pages.len())] * PAGE);
            let found = guard.lookup(iova, ByteCount(64), Perm::Read);
            black_box(found.map_err(|e| e.to_string())?.host);
        }
    }
    Ok(())
}

fn pairs(cache: &Arc<RadixIotlb>, pages: &[u64], count: usize) -> Result<(), String> {
    let mut random = Random(3);
    for _ in 0..count {
        let entry = entry(pages[random.below(pages.len())]);
        let _ = cache.start_invalidate(entry.iova, entry.len); // there is no reader to wait for
        let _ = cache.update(entry).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn guest_memory(pages: u64) -> Result<GuestMemoryMmap<()>, String> {
    let range = (GuestAddress(0), (pages * PAGE) as usize);
    GuestMemoryMmap::from_ranges(&[range]).map_err(|e| e.to_string())
}

fn read(memory: &impl GuestMemory, random: &mut Random, pages: u64) -> Result<(), String> {
    let at = random.below(pages as usize) as u64 * PAGE + random.below(512) as u64 * 8;
    let word = memory.read_obj::<u64>(GuestAddress(at));
    black_box(word.map_err(|e| e.to_string())?);
    Ok(())
}

fn mmap(pages: u64, count: usize) -> Result<(), String> {
    let memory = guest_memory(pages)?;
    let mut random = Random(7);
    (0..count).try_for_each(|_| read(&memory, &mut random, pages))
}

/// Pages lie backwards, so none can be merged.
fn translated(pages: u64, count: usize) -> Result<(), String> {
    let memory = guest_memory(pages)?;
    let host = memory.get_host_address(GuestAddress(0));
    let host = host.map_err(|e| e.to_string())? as u64;
    let cache = RadixIotlb::new(Limits::default());
    for page in 0..pages {
        let entry = Entry {
            iova: Iova(page * PAGE),
            len: ByteCount(PAGE),
            host: HostAddr(host + (pages - 1 - page) * PAGE),
            perm: Perm::ReadWrite,
        };
        let _ = cache.update(entry).map_err(|e| e.to_string())?;
    }
    let reader = cache.reader().map_err(|e| e.to_string())?;
    // SAFETY: the cache names `memory`, which stays mapped until the end of this function; no code
    // has references into it.
    let mut guest =
        unsafe { IovaMemory::new(reader, Arc::<MissChannel>::default(), Patience::default()) };
    let mut random = Random(7);
    for _ in 0..count / PER_GUARD {
        let guard = guest.pin();
        (0..PER_GUARD).try_for_each(|_| read(&guard, &mut random, pages))?;
    }
    Ok(())
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA'14). No library's: its instructions are among those
/// that `ci/instructions.budget` counts.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    /// Lemire's reduction, without a division.
    fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
    fn shuffle<T>(&mut self, what: &mut [T]) {
        for last in (1..what.len()).rev() {
            what.swap(last, self.below(last + 1));
        }
    }
}
