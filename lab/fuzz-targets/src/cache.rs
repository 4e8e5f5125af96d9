// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Arbitrary bytes become what is done to a cache: every implementation, beside an oracle.
//!
//! Byte 0 chooses limits: runs (bits 0 to 2: 65,536, else 2 to 32) and tables (bit 3: as few as
//! there may be). Then come records of 12 bytes, of which the last 4 mean nothing, at
//! most [`MAX_OPS`]:
//!
//! | byte 0: what, modulo 8 | byte 1 | bytes 2, 3 | byte 4 | byte 5 | byte 6 | byte 7 |
//! |---|---|---|---|---|---|---|
//! | 0, 1, 2: update | which part of the address space | page there | pages, log2 in bits 0 to 4, more or less in the rest | which host memory | permission | bit 0: not aligned |
//! | 3: invalidate | as above | as above | as above | - | - | bytes off |
//! | 4, 5: look up | as above | as above | as above | - | need | bytes off |
//! | 6: pin, unpin | as above | as above | as above | - | bit 0 | - |
//! | 7: clear (0), begin (1) or end (2) a guard to be held; all else is nothing | modulo 16 | - | - | - | - | - |

use crate::cache_oracle::Oracle;
use ioatlas_dma::units::*;
use ioatlas_vhost::cache::{baselines::*, *};
use std::sync::{Arc, Mutex, PoisonError};

/// Records beyond these are ignored.
pub const MAX_OPS: usize = 192;
const RECORD: usize = 12;

/// Something done to a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its variants say it
pub enum Op {
    Update(Entry),
    /// An invalidation is begun, and perhaps waits for a guard.
    Invalidate(Iova, ByteCount),
    /// A lookup of all pieces.
    Lookup(Iova, ByteCount, Perm),
    Pin(Iova, ByteCount),
    Unpin(Iova, ByteCount),
    Clear,
    /// A guard begins, and goes on while other things are done. Lock-based caches have none such.
    Hold,
    /// The guard that is held ends.
    Release,
}

/// What became of one input, summed over implementations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // its fields say it
pub struct Findings {
    /// Pieces that were compared.
    pub hits: u64,
    /// Lookups that missed, as they must.
    pub misses: u64,
    /// Ops that were refused.
    pub refused: u64,
    pub evictions: u64,
    /// Updates that an invalidation beat.
    pub beaten: u64,
    /// Invalidations that waited for a guard.
    pub waited: u64,
}

/// What an input says.
pub fn decode(input: &[u8]) -> (Limits, Vec<Op>) {
    let (first, rest) = input.split_first().unwrap_or((&0, &[]));
    let limits = Limits::default()
        .runs(match first & 7 {
            0 => 1 << 16,
            n => [2, 3, 4, 5, 8, 16, 32][usize::from(n) - 1],
        })
        .tables(if first & 8 == 0 { 4096 } else { 0 })
        .readers(2)
        .pins(4);
    let ops = rest.chunks_exact(RECORD).take(MAX_OPS);
    (
        limits,
        ops.filter_map(|record| op(record.try_into().ok()?))
            .collect(),
    )
}

fn op(b: [u8; RECORD]) -> Option<Op> {
    // parts that are next to each other, far apart, and at the end of the address space
    let parts = [
        0,
        0x40,
        0x1000,
        0x3_f000,
        1 << 24,
        0xabc_def0_0000,
        (1 << 52) - 0x1_0000,
    ];
    let part: u64 = parts[usize::from(b[1]) % parts.len()];
    let page = part + u64::from(u16::from_be_bytes([b[2], b[3]]));
    let pages = (1u64 << (b[4] & 0x1f))
        .wrapping_add(u64::from(b[4] >> 5))
        .wrapping_sub(3);
    let pages = if b[4] & 0x1f < 3 {
        u64::from(b[4] & 0x1f) + 1
    } else {
        pages
    };
    let (iova, len) = (Iova(page << GRANULE_LG2), ByteCount(pages << GRANULE_LG2));
    let off = u64::from(b[7]) * 33;
    let (at, bytes) = (
        Iova(iova.0.wrapping_add(off)),
        ByteCount(len.0.wrapping_sub(off)),
    );
    let perm = [Perm::Read, Perm::Write, Perm::ReadWrite][usize::from(b[6]) % 3];
    Some(match b[0] % 8 {
        0..=2 => {
            // memories that continue each other, or are the same at another place
            let diff = [
                0x7000_0000_0000,
                0x7000_0000_1000,
                0x10_0000_0000,
                0u64.wrapping_sub(4096),
            ];
            let host = iova.0.wrapping_add(diff[usize::from(b[5]) % diff.len()]) & ((1 << 62) - 1);
            let iova = Iova(iova.0 + u64::from(b[7] & 1));
            let host = HostAddr(host);
            Op::Update(Entry {
                iova,
                len,
                host,
                perm,
            })
        }
        3 => Op::Invalidate(at, bytes),
        4 | 5 => Op::Lookup(at, bytes, perm),
        6 if b[6] & 1 == 0 => Op::Pin(iova, len),
        6 => Op::Unpin(iova, len),
        _ => match b[1] % 16 {
            0 => Op::Clear,
            1 => Op::Hold,
            2 => Op::Release,
            _ => return None,
        },
    })
}

/// Runs one input on every implementation.
///
/// # Panics
/// If one of them does what it must not, which it names.
pub fn cache(input: &[u8]) -> Findings {
    let (limits, ops) = decode(input);
    let mut findings = Findings::default();
    replay(&RadixIotlb::new(limits), &limits, &ops, &mut findings);
    let ops: Vec<Op> = ops.into_iter().filter(|op| *op != Op::Hold).collect();
    replay(&ListIotlb::new(limits), &limits, &ops, &mut findings);
    replay(&IntervalIotlb::new(limits), &limits, &ops, &mut findings);
    replay(&VmIotlb::new(limits), &limits, &ops, &mut findings);
    findings
}

/// Runs `ops` on `cache`, which is new and has `limits`, beside the oracle.
///
/// # Panics
/// If it does what it must not, which is named.
pub fn replay<C: DeviceIotlb>(
    cache: &Arc<C>,
    limits: &Limits,
    ops: &[Op],
    findings: &mut Findings,
) {
    let mut replay = Replay {
        cache,
        limits,
        truth: Oracle::default(),
        told: Arc::default(),
        pins: Vec::new(),
        findings,
    };
    let told = replay.told.clone();
    cache.on_remove(Box::new(move |removed| {
        told.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(removed);
    }));
    let mut ops = ops.iter().copied().peekable();
    let mut reader = cache.reader().expect("the first");
    let mut other = cache.reader().expect("the second");
    while ops.peek().is_some() {
        for op in ops.by_ref() {
            if op == Op::Hold {
                break;
            }
            let started = replay.step(op, &mut other);
            assert!(
                started.is_none_or(|i| cache.is_done(i)),
                "{}: no guard is held",
                C::NAME
            );
        }
        if ops.peek().is_none() {
            break;
        }
        replay.hold(&mut reader, &mut other, &mut ops);
    }
    let stats = cache.stats();
    findings.evictions += stats.evictions;
    findings.beaten += stats.beaten;
}

struct Replay<'r, C> {
    cache: &'r Arc<C>,
    limits: &'r Limits,
    truth: Oracle,
    told: Arc<Mutex<Vec<Removed>>>,
    pins: Vec<Span>,
    findings: &'r mut Findings,
}

impl<C: DeviceIotlb> Replay<'_, C> {
    /// What the hook was told goes from the truth; evictions must not have touched a ring.
    fn hear(&mut self) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for removed in told.drain(..) {
            let span = Span::exact(removed.iova, removed.len).expect("whole pages");
            if removed.cause == RemovalCause::Evicted {
                let ring = self.pins.iter().find(|pin| pin.and(span).is_some());
                assert_eq!(ring, None, "{}: evicted a ring in {span} (P12)", C::NAME);
            }
            assert!(
                self.truth.now(span.first).is_some() && self.truth.now(span.end - 1).is_some(),
                "{}: {span} was removed and is not there",
                C::NAME
            );
            self.truth.remove(span);
        }
    }

    /// One op without a guard. Returns the invalidation that it started.
    fn step(&mut self, op: Op, reader: &mut C::Reader) -> Option<Invalidation> {
        let mut started = None;
        match op {
            Op::Update(entry) => {
                let updated = self.cache.update(entry);
                self.hear();
                match updated {
                    Ok(Updated::Done | Updated::Unchanged) => {
                        let span = Span::exact(entry.iova, entry.len)
                            .expect("it was taken: whole pages, no wrap (P12)");
                        self.truth.put(span, entry.host, entry.perm);
                    }
                    Ok(Updated::Beaten) | Err(_) => self.findings.refused += 1,
                }
            }
            Op::Invalidate(iova, len) => {
                started = Some(self.cache.start_invalidate(iova, len));
                self.hear();
                if let Some(span) = Span::invalidated(iova, len) {
                    self.truth.remove(span);
                }
            }
            Op::Lookup(iova, len, need) => self.compare(&reader.pin(), iova, len, need),
            Op::Pin(iova, len) => match self.cache.pin(iova, len) {
                Ok(()) => self
                    .pins
                    .push(Span::touched(iova, len).expect("a range (P12)")),
                Err(_) => self.findings.refused += 1,
            },
            Op::Unpin(iova, len) => {
                self.cache.unpin(iova, len);
                let span = Span::touched(iova, len).ok();
                if let Some(at) = self.pins.iter().position(|pin| Some(*pin) == span) {
                    self.pins.swap_remove(at);
                }
            }
            Op::Clear => {
                started = Some(self.cache.start_clear());
                self.hear();
                self.truth.remove(Span::ALL);
            }
            Op::Hold | Op::Release => {}
        }
        let census = self
            .cache
            .audit()
            .unwrap_or_else(|why| panic!("{}: {op:?}: {why}", C::NAME));
        let most = u64::from(self.limits.runs);
        assert!(census.runs <= most, "{}: {census}", C::NAME);
        started
    }

    /// Outside of updates, a lookup finds exactly what is true, in the longest pieces.
    fn compare(&mut self, guard: &impl Guard, iova: Iova, len: ByteCount, need: Perm) {
        for found in guard.pieces(iova, len, need) {
            match found {
                Ok(piece) => {
                    let left = ByteCount(len.0 - (piece.iova.0.wrapping_sub(iova.0)));
                    let true_piece = self.truth.piece(piece.iova, left, need);
                    let found = Some((piece.host, piece.len));
                    assert_eq!(found, true_piece, "{}: at {} (P12)", C::NAME, piece.iova);
                    self.findings.hits += 1;
                }
                Err(LookupError::Miss(miss)) => {
                    let true_piece = self.truth.piece(miss.iova, miss.len, need);
                    assert_eq!(true_piece, None, "{}: {miss} (P14)", C::NAME);
                    self.findings.misses += 1;
                }
                Err(LookupError::Range { .. }) => {
                    let range = Span::touched(iova, len);
                    assert!(range.is_err(), "{}: {iova}, {len} bytes", C::NAME);
                    self.findings.refused += 1;
                    return;
                }
            }
            assert!(
                Span::touched(iova, len).is_ok(),
                "{}: {iova}, {len} bytes is no range (P12)",
                C::NAME
            );
        }
    }

    /// Goes on with `ops` while `held` is under a guard, which may see what was true at any moment
    /// since it began, and for which every invalidation has to wait.
    fn hold(
        &mut self,
        held: &mut C::Reader,
        other: &mut C::Reader,
        ops: &mut impl Iterator<Item = Op>,
    ) {
        let mut waiting = Vec::new();
        let guard = held.pin();
        let since = self.truth.moment();
        for op in ops {
            match op {
                Op::Release => break,
                Op::Lookup(iova, len, need) => {
                    self.plausible(&guard, since, iova, len, need);
                    self.compare(&other.pin(), iova, len, need);
                }
                _ => waiting.extend(self.step(op, other)),
            }
            for started in &waiting {
                assert!(
                    started.found_nothing() || !self.cache.is_done(*started),
                    "{}: an invalidation is done under a guard that began before (P12)",
                    C::NAME
                );
            }
        }
        self.findings.waited += waiting.len() as u64;
        drop(guard);
        for started in waiting {
            assert!(
                self.cache.is_done(started),
                "{}: the guard has been dropped (P11)",
                C::NAME
            );
        }
    }

    fn plausible(&self, guard: &impl Guard, since: usize, iova: Iova, len: ByteCount, need: Perm) {
        for found in guard.pieces(iova, len, need) {
            let Ok(piece) = found else { return };
            let span = Span::touched(piece.iova, piece.len).expect("a piece is a range (P12)");
            let diff = piece.host.0.wrapping_sub(piece.iova.0);
            let pages = [span.first, span.first + span.pages() / 2, span.end - 1];
            for page in pages {
                let known = (since..=self.truth.moment()).filter_map(|m| self.truth.at(page, m));
                let known: Vec<_> = known.collect();
                assert!(
                    known
                        .iter()
                        .any(|(d, perm)| *d == diff && covers(*perm, need)),
                    "{}: page {page:#x} was never at {} since the guard began (P12)",
                    C::NAME,
                    piece.host
                );
            }
        }
    }
}
