// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a rig does, wherever its device's accesses go: by `Rig::translate`.

use crate::BY;
use crate::bounce::rig::{Rig, Tables};
use ioatlas_dma::{dma_api::*, platform::*, units::*};
use ioatlas_host::*;

impl Rig {
    pub fn client(&self, placement: Placement) -> Client<Host, Tables> {
        let config = ClientConfig::default().placement(placement);
        self.dma.client(config).unwrap()
    }
    /// Contiguous memory of the test's own.
    pub fn memory(&self, pages: u64) -> PhysAddr {
        let first = self.p.frame_alloc().unwrap().page();
        for nth in 1..pages {
            let next = self.p.frame_alloc().unwrap().page();
            assert_eq!(next.0, first.0 + nth, "the arena is fresh");
        }
        first.addr()
    }
    pub fn poke(&self, at: PhysAddr, bytes: &[u8]) {
        self.p.write(BY, bytes, at).unwrap();
    }
    pub fn peek(&self, at: PhysAddr, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.p.read(BY, at, &mut bytes).unwrap();
        bytes
    }
    /// What the device reads; `None` is a fault.
    pub fn device_read(&self, at: Iova, len: u64) -> Vec<Option<u8>> {
        (at.0..at.0 + len)
            .map(|at| {
                let at = self.translate(Iova(at), AccessKind::Read)?;
                Some(self.peek(at, 1)[0])
            })
            .collect()
    }
    /// Returns how many bytes it could write.
    pub fn device_write(&self, at: Iova, bytes: &[u8]) -> usize {
        let mut written = 0;
        for (at, byte) in (at.0..).zip(bytes) {
            if let Some(at) = self.translate(Iova(at), AccessKind::Write) {
                self.poke(at, &[*byte]);
                written += 1;
            }
        }
        written
    }
    /// What the device reads in whole pages, all of which it may.
    pub fn device_reads(&self, first: IovaPage, pages: u64) -> Vec<u8> {
        let pages = (first.0..first.0 + pages).map(|page| IovaPage(page).addr());
        let at = pages.map(|page| self.translate(page, AccessKind::Read));
        at.flat_map(|at| self.peek(at.expect("P14: readable"), GRANULE as usize))
            .collect()
    }
    /// Writes `byte` wherever the device may.
    pub fn device_writes(&self, from: Iova, len: u64, byte: u8) {
        let (mut at, end) = (from.0, from.0 + len);
        while at < end {
            let here = (GRANULE - Iova(at).offset()).min(end - at);
            if let Some(to) = self.translate(Iova(at), AccessKind::Write) {
                self.poke(to, &vec![byte; here as usize]);
            }
            at += here;
        }
    }
}
