// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a case needs of a unit, whatever made it: registers, memory, devices, and a
//! state to begin from.

use crate::BY;
use crate::bench_soft::Soft;
use ioatlas_dma::{
    platform::{Ordering, PhysMemory},
    units::*,
};
use ioatlas_host::*;
use ioatlas_vtd::{layout::AddressWidth, registers::*};
use std::{fmt, sync::Arc};

/// Devices behind the unit. Those of slot 5 differ in one bit of the function number each.
pub const NIC: SourceId = SourceId(0x28);
pub const FUNCTION_1: SourceId = SourceId(0x29);
pub const FUNCTION_2: SourceId = SourceId(0x2a);
pub const FUNCTION_4: SourceId = SourceId(0x2c);
pub const DISK: SourceId = SourceId(0x30);
pub const DEVICES: [SourceId; 5] = [NIC, FUNCTION_1, FUNCTION_2, FUNCTION_4, DISK];

/// Memory of the machine: 2 GiB, so that two leaves of 1 GiB fit.
pub const MEMORY: u64 = 2 << 30;
/// Pages that accesses are meant for. The platform hands out frames from the bottom and never gets
/// so far.
pub const A: PhysPage = PhysPage(0x5_0000);
pub const B: PhysPage = PhysPage(0x5_0201);
pub const C: PhysPage = PhysPage(0x5_0403);
pub const D: PhysPage = PhysPage(0x5_0607);
/// Where the same offset as A's lies in the other GiB.
pub const LOW: PhysPage = PhysPage(0x1_0000);
/// In the large leaf around A, not its first page.
pub const A_INSIDE: PhysPage = PhysPage(0x5_0143);
pub const TARGETS: [PhysPage; 6] = [A, B, C, D, LOW, A_INSIDE];

/// Which unit a case runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    Qemu,
    Software,
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Which::Qemu => "QEMU",
            Which::Software => "software",
        })
    }
}

/// Where an access went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Data moved between the device and this page, at the offset that the device asked for.
    Page(PhysPage),
    /// Nothing moved.
    Blocked,
    /// Something moved that lies on no target.
    Strange(u64),
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reach::Page(page) => write!(f, "page {page}"),
            Reach::Blocked => f.write_str("blocked"),
            Reach::Strange(value) => write!(f, "neither blocked nor on a target ({value:#x})"),
        }
    }
}

/// A unit with its machine.
pub trait Bench {
    fn which(&self) -> Which;
    /// The widest table that it walks; the IOVAs have as many bits.
    fn width(&self) -> AddressWidth;
    /// Its memory, and a platform for our driver.
    fn host(&self) -> &Arc<Host>;
    fn registers(&self) -> Arc<dyn Registers>;
    /// How many devices are behind it.
    fn devices(&self) -> usize;
    /// `source` moves 8 bytes at `at`, a multiple of 8.
    fn access(&mut self, source: SourceId, at: Iova, kind: AccessKind) -> Reach;
    /// Caches empty, no fault recorded, queue off; translation off, or on by a root table in which
    /// nothing is present.
    fn reset(&mut self);
    /// The software unit itself, for what only it can show.
    fn soft(&self) -> Option<Arc<Soft>> {
        None
    }
    /// Ends the unit's process, if it has one.
    fn kill(&mut self) {}
    /// What went wrong with the unit's process, if anything did; every case fails from then on.
    fn trouble(&self) -> Option<String>;
}

/// What a target's word holds until a device writes it: where it is, and a mark that nothing else
/// has. It fits into 48 bits.
pub fn fill(page: PhysPage, word: usize) -> u64 {
    0x5a5a << 32 | page.0 << 9 | word as u64
}

/// The page, if `value` is what lies in word `word` of it.
pub fn filled(value: u64, word: usize) -> Option<PhysPage> {
    let page = PhysPage((value & 0xffff_ffff) >> 9);
    (value == fill(page, word)).then_some(page)
}

/// Puts into every word of every target what says where it is.
pub fn refill(host: &Host) {
    (0..WORDS).for_each(|word| refill_word(host, word));
}
pub fn refill_word(host: &Host, word: usize) {
    for page in TARGETS {
        if let Some(held) = host.word(BY, page, word) {
            held.store(fill(page, word), Ordering::Release);
        }
    }
}
