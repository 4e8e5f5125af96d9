// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The memory that buffers come from: one file in memory, mapped shared, which is the platform's
//! arena.
//!
//! How its pages lie in the machine decides what mapping them costs: the kernel maps a run of
//! neighbours at once. *Contiguous* memory is huge pages where the system has some reserved;
//! *scattered* memory is small pages touched in an order that keeps neighbours apart. What really
//! came of it is asked of the kernel ([`runs`]), which tells root only.

use ioatlas_dma::{dma_api::Lent, platform::Authority, units::*};
use ioatlas_host::{copy::InProcess, *};
use rustix::fs::{MemfdFlags, memfd_create};
use std::{fmt, fs::File, io, os::unix::fs::FileExt, str::FromStr};

/// What reads and writes the bytes of buffers.
#[allow(unsafe_code)] // a promise
// SAFETY: it is used for memory that is behind frames a driver has taken, and for a page that a
// user of this crate says is its own.
pub(crate) const OWNER: Authority = unsafe { Authority::assume() };

/// Memory that is lent to a device for one mapping.
#[allow(unsafe_code)] // a promise
pub(crate) fn lend<L>(list: L) -> Lent<L> {
    // SAFETY: it is what `OWNER` is for, and is looked at by copies and words alone.
    unsafe { Lent::new(list) }
}

/// How an arena's pages lie in the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Huge pages of 2 MiB.
    Huge,
    /// Small pages as they come.
    Small,
    /// Small pages, no two neighbours together.
    Scattered,
}

const HUGE: u64 = 2 << 20;

impl Layout {
    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Huge => "huge",
            Layout::Small => "small",
            Layout::Scattered => "scattered",
        }
    }

    /// A file of `len`, all of which is there.
    ///
    /// # Errors
    /// What the kernel says; of huge pages, how to reserve some.
    pub fn file(self, len: ByteCount) -> io::Result<File> {
        let flags = match self {
            Layout::Huge => MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            Layout::Small | Layout::Scattered => MemfdFlags::CLOEXEC,
        };
        let file = File::from(memfd_create("ioatlas", flags)?);
        file.set_len(len.0.next_multiple_of(HUGE))?;
        Ok(file)
    }

    /// An arena of `len` on such a file.
    pub fn arena(self, len: ByteCount) -> io::Result<Host> {
        let pages = len.0.next_multiple_of(HUGE) / GRANULE;
        let config = HostConfig::default().frames(pages as usize).slots(2);
        let reserve = |error: io::Error| match self {
            Layout::Huge => io::Error::new(
                error.kind(),
                format!(
                    "{error}: no huge pages; reserve {} by /proc/sys/vm/nr_hugepages, or use --memory small",
                    pages * GRANULE / HUGE
                ),
            ),
            Layout::Small | Layout::Scattered => error,
        };
        let file = self.file(len).map_err(reserve)?;
        let host = Host::on_file(&file, PhysPage(0), config).map_err(reserve)?;
        self.touch(&file, pages)?;
        Ok(host)
    }

    /// Makes every page be there, in this layout's order.
    fn touch(self, file: &File, pages: u64) -> io::Result<()> {
        let touch = |page: u64| file.write_all_at(&[0], page * GRANULE);
        match self {
            // a huge page is touched by the first access through the mapping; it cannot be written
            // by a call
            Layout::Huge => Ok(()),
            Layout::Small => (0..pages).try_for_each(touch),
            Layout::Scattered => {
                (0..pages).step_by(2).try_for_each(touch)?;
                (1..pages).step_by(2).try_for_each(touch)
            }
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Layout {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let all = [Layout::Huge, Layout::Small, Layout::Scattered];
        let layout = all.into_iter().find(|layout| layout.name() == name);
        layout.ok_or_else(|| {
            format!("`{name}` is no layout of memory; there are huge, small, scattered")
        })
    }
}

/// Of how many runs of neighbours in the machine `range` of the arena is, if the kernel tells.
pub fn runs(host: &Host, range: PhysRange) -> Option<u64> {
    let map = File::open("/proc/self/pagemap").ok()?;
    let base = host.bytes(range).ok()? as u64;
    let mut runs = 0;
    let mut last = None;
    for page in 0..range.pages().0 {
        let at = base / GRANULE + page;
        let mut entry = [0; 8];
        map.read_exact_at(&mut entry, at * 8).ok()?;
        // the frame's number, in the low 55 bits; 0 for a process that may not know it
        let frame = u64::from_le_bytes(entry) & ((1 << 55) - 1);
        if frame == 0 {
            return None;
        }
        runs += u64::from(last.is_none_or(|last: u64| last + 1 != frame));
        last = Some(frame);
    }
    Some(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_dma::platform::CopyMemory;

    #[test]
    fn an_arena_is_there_and_zero() {
        for layout in [Layout::Small, Layout::Scattered] {
            let host = layout.arena(ByteCount(100)).unwrap();
            assert_eq!(host.frames() as u64, HUGE / GRANULE);
            let mut bytes = [1; 16];
            host.read(OWNER, PhysAddr(HUGE - 16), &mut bytes).unwrap();
            assert_eq!(bytes, [0; 16]);
        }
    }
}
