// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A page table for front ends that have no guest with one: mappings in a map.

use super::{IoPageTable, Mapping};
use crate::protocol::message::FrontAddr;
use ioatlas_dma::units::*;
use std::{
    collections::BTreeMap,
    sync::{PoisonError, RwLock},
};

/// Mappings, by first address. Those that were put in one by one stay so: they are the leaves.
#[derive(Debug, Default)]
pub struct PageMap {
    mappings: RwLock<BTreeMap<u64, Mapping>>,
}

impl PageMap {
    /// Puts a mapping in, in place of what it covers of others.
    ///
    /// # Panics
    /// If it is empty or wraps around.
    pub fn map(&self, mapping: Mapping) {
        let last = mapping.iova.0.checked_add(mapping.len.0 - 1);
        let last = last.expect("a mapping does not wrap around");
        let mut mappings = self
            .mappings
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        cut(&mut mappings, mapping.iova.0, last);
        mappings.insert(mapping.iova.0, mapping);
    }

    /// Takes `len` bytes at `iova` out. [`IotlbServer::invalidate`](super::IotlbServer::invalidate)
    /// has to be called after it.
    pub fn unmap(&self, iova: Iova, len: ByteCount) {
        let Some(rest) = len.0.checked_sub(1) else {
            return;
        };
        let mut mappings = self
            .mappings
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        cut(&mut mappings, iova.0, iova.0.saturating_add(rest));
    }
}

/// Removes `first` to `last`; what is left of a mapping on either side stays.
fn cut(mappings: &mut BTreeMap<u64, Mapping>, first: u64, last: u64) {
    while let Some((&start, &old)) = mappings.range(..=last).next_back() {
        let end = start + (old.len.0 - 1);
        if end < first {
            break;
        }
        mappings.remove(&start);
        if end > last {
            let gone = last + 1 - start;
            let after = Mapping {
                iova: Iova(last + 1),
                len: ByteCount(old.len.0 - gone),
                front: FrontAddr(old.front.0 + gone),
                perm: old.perm,
            };
            mappings.insert(last + 1, after);
        }
        if start < first {
            let before = Mapping {
                len: ByteCount(first - start),
                ..old
            };
            mappings.insert(start, before);
            break;
        }
    }
}

impl IoPageTable for PageMap {
    fn lookup(&self, iova: Iova) -> Option<Mapping> {
        let mappings = self.mappings.read().unwrap_or_else(PoisonError::into_inner);
        let (_, mapping) = mappings.range(..=iova.0).next_back()?;
        (iova.0 - mapping.iova.0 < mapping.len.0).then_some(*mapping)
    }
}
