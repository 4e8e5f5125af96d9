// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A guest's memory and its I/O page table. IOVAs are scattered over the memory; what no IOVA names
//! is canary.

use ioatlas_dma::units::*;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};

pub const PAGE: u64 = 4096;
const CANARY: u8 = 0xa5;

/// How an allocation lies in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    Contiguous,
    Scattered,
}

pub struct Guest {
    pub memory: MmapRegion<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// IOVA page -> page of memory.
    table: BTreeMap<u64, (u64, Perm)>,
    free: Vec<u64>,
    next_iova: u64,
}

impl Guest {
    pub fn new(memory: MmapRegion<()>) -> Self {
        let pages = memory.size() as u64 / PAGE;
        let whole = memory.as_volatile_slice();
        whole.copy_from(&vec![CANARY; memory.size()]);
        let state = State {
            free: (0..pages).rev().collect(),
            next_iova: 0x10_0000,
            ..State::default()
        };
        Guest {
            memory,
            state: Mutex::new(state),
        }
    }

    pub fn anonymous(pages: usize) -> Self {
        Guest::new(MmapRegion::new(pages * PAGE as usize).unwrap())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Maps `len` bytes, zeroed, at a fresh IOVA that is a multiple of the page, with a page
    /// unmapped behind them.
    pub fn alloc(&self, len: u64, perm: Perm, lie: Lie) -> Iova {
        let pages = len.div_ceil(PAGE);
        let mut state = self.state();
        let first = state.next_iova;
        state.next_iova += pages + 1;
        for number in 0..pages {
            let at = match lie {
                Lie::Contiguous => state.free.len() - 1,
                // two pages are never neighbours
                Lie::Scattered => state.free.len() - 1 - 2 * (number as usize % 2),
            };
            let page = state.free.remove(at);
            state.table.insert(first + number, (page, perm));
            self.page(page).copy_from(&[0u8; PAGE as usize]);
        }
        Iova(first * PAGE)
    }

    fn page(&self, page: u64) -> VolatileSlice<'_> {
        let at = (page * PAGE) as usize;
        self.memory.get_slice(at, PAGE as usize).unwrap()
    }

    /// Where an IOVA is in memory.
    pub fn find(&self, iova: Iova) -> Option<(u64, Perm)> {
        let (page, perm) = *self.state().table.get(&iova.page().0)?;
        Some((page * PAGE + iova.offset(), perm))
    }

    /// Moves the page of an IOVA elsewhere in memory; where it was is canary from now on. Nothing
    /// may access it meanwhile but what `invalidate` stops.
    pub fn migrate(&self, iova: Iova, invalidate: &mut dyn FnMut(Iova, ByteCount)) {
        let page = iova.page();
        let (old, perm, new) = {
            let mut state = self.state();
            let Some((old, perm)) = state.table.remove(&page.0) else {
                return;
            };
            (old, perm, state.free.pop().expect("memory enough"))
        };
        invalidate(page.addr(), ByteCount(PAGE));
        let mut bytes = vec![0u8; PAGE as usize];
        self.page(old).copy_to(&mut bytes[..]);
        self.page(new).copy_from(&bytes[..]);
        self.page(old).copy_from(&[CANARY; PAGE as usize]);
        let mut state = self.state();
        state.table.insert(page.0, (new, perm));
        state.free.insert(0, old);
    }

    /// Unmaps what was allocated at `iova`; between unmapping and freeing, `invalidate` is called.
    pub fn free(&self, iova: Iova, len: u64, invalidate: &mut dyn FnMut(Iova, ByteCount)) {
        let pages = len.div_ceil(PAGE);
        let mut gone = Vec::new();
        {
            let mut state = self.state();
            for number in 0..pages {
                let page = state.table.remove(&(iova.page().0 + number));
                gone.push(page.expect("was mapped").0);
            }
        }
        invalidate(iova, ByteCount(pages * PAGE));
        let mut state = self.state();
        for page in gone {
            self.page(page).copy_from(&[CANARY; PAGE as usize]);
            state.free.insert(0, page);
        }
    }

    /// All mapped pages.
    pub fn pages(&self) -> Vec<Iova> {
        self.state().table.keys().map(|p| Iova(p * PAGE)).collect()
    }

    /// Memory within one page.
    pub fn at(&self, iova: Iova, len: usize) -> VolatileSlice<'_> {
        let (at, _) = self.find(iova).expect("the driver uses what it mapped");
        self.memory.get_slice(at as usize, len).unwrap()
    }

    /// The pages of a range: where each begins in the range, and its memory.
    fn pieces(&self, iova: Iova, len: usize) -> Vec<(usize, VolatileSlice<'_>)> {
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < len {
            let at = Iova(iova.0 + done as u64);
            let here = (len - done).min((PAGE - at.offset()) as usize);
            pieces.push((done, self.at(at, here)));
            done += here;
        }
        pieces
    }

    pub fn write(&self, iova: Iova, bytes: &[u8]) {
        for (at, memory) in self.pieces(iova, bytes.len()) {
            memory.copy_from(&bytes[at..at + memory.len()]);
        }
    }

    pub fn read(&self, iova: Iova, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (at, memory) in self.pieces(iova, len) {
            memory.copy_to(&mut bytes[at..]);
        }
        bytes
    }

    /// Panics if memory that no IOVA names was written to.
    pub fn assert_canaries(&self) {
        let state = self.state();
        let mut bytes = vec![0u8; PAGE as usize];
        for page in &state.free {
            self.page(*page).copy_to(&mut bytes[..]);
            assert!(
                bytes.iter().all(|byte| *byte == CANARY),
                "page {page} is mapped nowhere, and was written to (P1, P12)"
            );
        }
    }
}
