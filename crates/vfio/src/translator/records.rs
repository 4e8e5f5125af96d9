// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is mapped, mapping by mapping: for the address API, for the end of a domain, and for the
//! audit.

use crate::space::SpaceLimits;
use ioatlas_dma::{iova::AllocKind, table::RawError, units::*};
use std::collections::{BTreeMap, btree_map::Entry};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pages: PageCount,
    kind: AllocKind,
    unmap_by: UnmapBy,
    /// How many mappings it is to the kernel.
    calls: u64,
}

/// By what a mapping is ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum UnmapBy {
    Token,
    Raw,
}

impl Record {
    pub fn new(pages: PageCount, kind: AllocKind, calls: u64) -> Self {
        Record {
            pages,
            kind,
            unmap_by: UnmapBy::Token,
            calls,
        }
    }
    pub fn kind(&self) -> AllocKind {
        self.kind
    }
    pub fn calls(&self) -> u64 {
        self.calls
    }
    fn at(&self, first: IovaPage) -> IovaRange {
        IovaRange::new(first, self.pages)
    }
}

/// All mappings by their first page. Their ranges are disjoint.
#[derive(Default)]
pub(super) struct Records(BTreeMap<IovaPage, Record>);

impl Records {
    pub fn insert(&mut self, first: IovaPage, record: Record) {
        let before = self.0.insert(first, record);
        debug_assert!(before.is_none(), "an allocation of {first} was given twice");
    }

    /// Takes the mapping `range` out, if it is one.
    pub fn take_exactly(&mut self, range: IovaRange) -> Option<Record> {
        match self.0.entry(range.first) {
            Entry::Occupied(record) if record.get().pages == range.pages => Some(record.remove()),
            _ => None,
        }
    }

    /// Takes the mappings out that lie in `range` whole.
    pub fn take_within(&mut self, range: IovaRange) -> Vec<(IovaRange, Record)> {
        let mut taken = Vec::new();
        let mut at = range.first;
        while let Some((first, record)) = self.0.range(at..range.end()).next() {
            let (first, record) = (*first, *record);
            at = IovaPage(first.0 + 1);
            if range.contains(&record.at(first)) {
                self.0.remove(&first);
                taken.push((record.at(first), record));
            }
        }
        taken
    }

    pub fn give_up(&mut self, first: IovaPage) {
        match self.0.get_mut(&first) {
            Some(record) => record.unmap_by = UnmapBy::Raw,
            None => debug_assert!(false, "no mapping begins at {first}"),
        }
    }

    /// Takes the address API of exactly the mapping `range`.
    pub fn claim(&mut self, range: IovaRange) -> Result<AllocKind, RawError> {
        let first = range.first;
        let before = self.0.range_mut(..=first).next_back();
        let found = before.filter(|(at, record)| record.at(**at).end() > first);
        let (at, record) = found.ok_or(RawError::NotMapped(first))?;
        let mapped = record.at(*at);
        if mapped.first != first {
            return Err(RawError::NotFirst(first));
        }
        if mapped.end() > range.end() {
            return Err(RawError::NotLast(IovaPage(range.end().0 - 1)));
        }
        if mapped.end() < range.end() {
            return Err(RawError::Several(IovaPage(mapped.end().0 - 1)));
        }
        match std::mem::replace(&mut record.unmap_by, UnmapBy::Token) {
            UnmapBy::Raw => Ok(record.kind),
            UnmapBy::Token => Err(RawError::NotGivenUp(first)),
        }
    }

    pub fn all(&self) -> Vec<(IovaRange, Record)> {
        let range = |(first, record): (&IovaPage, &Record)| (record.at(*first), *record);
        self.0.iter().map(range).collect()
    }

    /// How many pages are mapped, if all of it is as it should be.
    pub fn audit(&self, limits: &SpaceLimits) -> Result<PageCount, String> {
        let mut pages = 0;
        let mut end = IovaPage(0);
        for (range, record) in self.all() {
            if !limits.has(&range) {
                return Err(format!("{range} is mapped, where the host has nothing"));
            }
            if range.first < end {
                return Err(format!("{range} begins inside another mapping"));
            }
            if record.calls == 0 || record.calls > range.pages.0 {
                return Err(format!("{range} is {} mappings", record.calls));
            }
            end = range.end();
            pages += range.pages.0;
        }
        Ok(PageCount(pages))
    }
}
