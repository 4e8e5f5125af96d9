// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A heap with lists of free blocks for each virtual CPU, as slab and page allocators have them.
//!
//! What a CPU frees it gets again first, and what it needs besides comes in batches that lie
//! together: a page of small blocks, or [`PAGES`] pages. So a CPU's addresses are its neighbours',
//! as they are in a running kernel; an arena alone hands neighbouring blocks to whichever CPU asks
//! next. None of it is a point: it is not the code under test.

use super::engine;
use core::hash::Hasher;
use ioatlas_dma::{
    platform::{Heap, HeapBlock, HeapBlockError},
    units::ByteCount,
};
use ioatlas_host::arena::Arena;
use std::{
    boxed::Box,
    collections::HashSet,
    hash::BuildHasherDefault,
    sync::{Mutex, MutexGuard, PoisonError},
    vec::Vec,
};

/// Pages that a list gets from the arena at a time, and gives back: as Linux's per-CPU page lists.
const PAGES: usize = 31;
const PAGE: u64 = 4096;

pub(super) struct Slabs {
    arena: Arena,
    state: Mutex<State>,
}

struct State {
    /// By CPU, then by the length's logarithm.
    free: Box<[[Vec<HeapBlock>; LENGTHS]]>,
    held: HashSet<HeapBlock, BuildHasherDefault<Spread>>,
    kept_bytes: u64,
}

/// Powers of two that a length may be.
const LENGTHS: usize = u64::BITS as usize;

/// Spreads blocks over a hash table by multiplications: no attacker chooses them.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed")
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(20);
    }
}

/// Which list of a CPU's has blocks of this length.
fn list_of(len: ByteCount) -> usize {
    len.0.trailing_zeros() as usize
}

/// Blocks of `len` bytes that come at a time.
fn batch(len: ByteCount) -> usize {
    match len.0 {
        ..PAGE => (PAGE / len.0) as usize,
        PAGE => PAGES,
        _ => 1,
    }
}

impl Slabs {
    pub fn new(arena: Arena, cpus: usize) -> Self {
        Slabs {
            arena,
            state: Mutex::new(State {
                free: (0..cpus).map(|_| [const { Vec::new() }; LENGTHS]).collect(),
                held: HashSet::default(),
                kept_bytes: 0,
            }),
        }
    }
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Everything that is kept goes back.
    fn drain(&self, state: &mut State) {
        let lists = state.free.iter_mut().flatten();
        for block in lists.flat_map(|list| list.drain(..)) {
            self.arena.free(block).expect("kept since it was freed");
        }
        state.kept_bytes = 0;
    }
}

impl Heap for Slabs {
    fn arena(&self) -> ByteCount {
        self.arena.arena()
    }
    fn in_use(&self) -> ByteCount {
        ByteCount(self.arena.in_use().0 - self.state().kept_bytes)
    }
    fn alloc(&self, len: ByteCount) -> Option<HeapBlock> {
        let len = HeapBlock::rounded(len)?;
        let state = &mut *self.state();
        let list = &mut state.free[engine::cpu().0][list_of(len)];
        if list.is_empty() {
            let fresh = core::iter::from_fn(|| self.arena.alloc(len));
            list.extend(fresh.take(batch(len)));
            // the first is to be handed out first
            list.reverse();
            state.kept_bytes += list.len() as u64 * len.0;
        }
        let found = match list.pop() {
            Some(block) => {
                state.kept_bytes -= len.0;
                block
            }
            None => {
                self.drain(state);
                self.arena.alloc(len)?
            }
        };
        state.held.insert(found);
        Some(found)
    }
    fn free(&self, block: HeapBlock) -> Result<(), HeapBlockError> {
        let state = &mut *self.state();
        if !state.held.remove(&block) {
            return Err(HeapBlockError(block));
        }
        let (list, most) = (
            &mut state.free[engine::cpu().0][list_of(block.len)],
            2 * batch(block.len),
        );
        list.push(block);
        state.kept_bytes += block.len.0;
        if list.len() > most {
            // the oldest go
            for block in list.drain(..most / 2) {
                self.arena.free(block).expect("kept since it was freed");
                state.kept_bytes -= block.len.0;
            }
        }
        Ok(())
    }
}
