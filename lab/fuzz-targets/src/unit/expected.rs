// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A second walk, in one function, from the specification: it shares no code with the unit that it
//! judges.
//!
//! It is for a unit with 52 physical address bits and 16-bit domain ids, so that no address and no
//! domain id is reserved.

use ioatlas_dma::{
    platform::{Ordering, PhysMemory},
    units::{AccessKind, PhysPage},
};
use ioatlas_host::{Host, HostConfig};
use ioatlas_viommu::config::Geometry;

/// Where an access gets to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// To this physical page.
    Translated(u64),
    /// To the address it names.
    Passed,
    /// Nowhere: the access is blocked.
    Blocked,
}

/// What the unit was told by register writes.
#[derive(Default)]
pub(super) struct Told {
    /// RTADDR, as last written.
    pub(super) root_address: u64,
    /// The root table, as latched; none in other modes than legacy (VT-d 4.1 §11.4.5).
    pub(super) root: Option<u64>,
    pub(super) translating: bool,
}

/// Memory, and how to walk it.
pub(super) struct Walker {
    pub(super) memory: std::sync::Arc<Host>,
    pub(super) geometry: Geometry,
    pub(super) pass_through: bool,
    /// Entries of tables up to this level may be leaves.
    pub(super) largest_leaf: u32,
}

impl Walker {
    pub(super) fn new(
        frames: usize,
        geometry: Geometry,
        pass_through: bool,
        largest_leaf: u32,
    ) -> Self {
        let memory = Host::new(HostConfig::default().frames(frames).slots(1));
        Walker {
            memory: memory.into(),
            geometry,
            pass_through,
            largest_leaf,
        }
    }

    fn word(&self, table: u64, index: usize) -> Option<u64> {
        let word = self.memory.word(super::OWNER, PhysPage(table), index)?;
        Some(word.load(Ordering::SeqCst))
    }

    /// Where memory as it is now lets an access of device `source` to `page` get.
    pub(super) fn expected(&self, told: &Told, source: u16, page: u64, kind: AccessKind) -> End {
        if !told.translating {
            return End::Passed;
        }
        self.translate(told, source, page, kind)
            .unwrap_or(End::Blocked)
    }

    /// Walks the tables; `None` where the access is blocked.
    fn translate(&self, told: &Told, source: u16, page: u64, kind: AccessKind) -> Option<End> {
        let (bus, function) = (usize::from(source >> 8), usize::from(source & 0xff));
        // root entry: present in 0, table in 51:12, nothing else (§9.1)
        let (low, high) = (
            self.word(told.root?, bus * 2)?,
            self.word(told.root?, bus * 2 + 1)?,
        );
        if low & 0xfff0_0000_0000_0fff != 1 || high != 0 {
            return None;
        }
        // context entry: present in 0, FPD 1, type 3:2, table 51:12, width 66:64, free 70:67,
        // domain 87:72 (§9.3)
        let contexts = low >> 12;
        let low = self.word(contexts, function * 2)?;
        let high = self.word(contexts, function * 2 + 1)?;
        if low & 0xfff0_0000_0000_0ff1 != 1 || high & !0x00ff_ff7f != 0 {
            return None;
        }
        let nine_bits = self.geometry.entries_lg2 == 9;
        if nine_bits && high & 7 != u64::from(self.geometry.levels) - 2 {
            return None;
        }
        match low >> 2 & 3 {
            0 => {}
            2 if self.pass_through => return Some(End::Passed),
            _ => return None,
        }
        let bits = self.geometry.entries_lg2;
        if page >> (bits * self.geometry.levels) != 0 {
            return None;
        }
        let need = match kind {
            AccessKind::Read => 1,
            AccessKind::Write => 2,
        };
        let mut at = (low & 0x000f_ffff_ffff_f000) >> 12;
        for level in (1..=self.geometry.levels).rev() {
            let index = page >> (bits * (level - 1)) & ((1 << bits) - 1);
            let entry = self.word(at, index as usize)?;
            // bits 11 and 62 are reserved, and the large-page bit where a table is pointed to
            // (§9.8)
            let may_end = (2..=self.largest_leaf).contains(&level);
            let size = if level > 1 && !may_end { 1 << 7 } else { 0 };
            if entry & need == 0 || entry & (1 << 62 | 1 << 11 | size) != 0 {
                return None;
            }
            at = (entry & 0x000f_ffff_ffff_f000) >> 12;
            if may_end && entry & 1 << 7 != 0 {
                // the address of a large leaf is a multiple of its size
                let size = 1 << (bits * (level - 1));
                return (at % size == 0).then_some(End::Translated(at + page % size));
            }
        }
        Some(End::Translated(at))
    }
}
