// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! vm-memory's `Iotlb` behind the contract.
//!
//! It cannot say what it holds, nor how far a run goes beyond what was asked, nor the first piece
//! of a range of which something is missing. So an [`IntervalTree`] beside it answers that; a
//! lookup that finds all of its range asks the `Iotlb` alone.

use super::*;
use ioatlas_dma::units::*;
use vm_memory::{GuestAddress, Permissions, iommu::Iotlb};

/// vm-memory's `Iotlb` for each reader, under its reader-writer lock.
pub type VmIotlb = Locked<VmMemory>;

/// vm-memory's `Iotlb`, with an interval tree for what it does not answer.
#[derive(Debug)]
pub struct VmMemory {
    tlb: Iotlb,
    beside: IntervalTree,
}

fn permissions(perm: Perm) -> Permissions {
    match perm {
        Perm::Read => Permissions::Read,
        Perm::Write => Permissions::Write,
        Perm::ReadWrite => Permissions::ReadWrite,
    }
}

impl VmMemory {
    fn set(&mut self, run: Run) {
        let (iova, len) = (run.span.iova().0, run.span.len().0);
        if iova.checked_add(len).is_none() {
            return; // its ranges cannot end with the address space; what is beside it answers
        }
        let (from, to) = (GuestAddress(iova), GuestAddress(run.host.0));
        let set = self
            .tlb
            .set_mapping(from, to, len as usize, permissions(run.perm));
        set.expect("vm-memory refuses nothing");
    }
}

impl Clone for VmMemory {
    fn clone(&self) -> Self {
        let mut copy = Self::empty();
        let runs = (0..self.places()).filter_map(|place| self.nth(place));
        runs.for_each(|run| copy.insert(run));
        copy
    }
}

impl private::Sealed for VmMemory {}

impl Store for VmMemory {
    const NAME: &'static str = "vm-memory";

    fn empty() -> Self {
        VmMemory {
            tlb: Iotlb::new(),
            beside: IntervalTree::empty(),
        }
    }
    fn insert(&mut self, run: Run) {
        self.set(run);
        self.beside.insert(run);
    }
    fn remove(&mut self, span: Span, removed: &mut dyn FnMut(Run)) {
        let from = span.iova().0;
        let len = span.len().0.min(u64::MAX - from); // see `set`
        self.tlb
            .invalidate_mapping(GuestAddress(from), len as usize);
        self.beside.remove(span, removed);
    }
    fn find(&self, page: u64) -> Option<Run> {
        self.beside.find(page)
    }
    #[inline]
    fn piece(&self, iova: Iova, len: ByteCount, need: Perm) -> Option<Result<Piece, LookupError>> {
        let ends = iova.0.checked_add(len.0).is_some();
        let lookup = || {
            let (from, need) = (GuestAddress(iova.0), permissions(need));
            Iotlb::lookup(&self.tlb, from, len.0 as usize, need)
                .ok()?
                .next()
        };
        match ends.then(lookup).flatten() {
            Some(mapped) => Some(Ok(Piece {
                iova,
                host: HostAddr(mapped.base.0),
                len: ByteCount(mapped.length as u64),
            })),
            None => Some(self.find(iova.0 >> GRANULE_LG2)?.piece(iova, len, need)),
        }
    }
    fn count(&self) -> usize {
        self.beside.count()
    }
    fn places(&self) -> usize {
        self.beside.places()
    }
    fn nth(&self, place: usize) -> Option<Run> {
        self.beside.nth(place)
    }
    /// Without what is in the `Iotlb`, which does not say.
    fn bytes(&self) -> usize {
        self.beside.bytes()
    }
}
