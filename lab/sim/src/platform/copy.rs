// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The CPU's way to simulated memory. Each call passes one point, before its first byte; then it is
//! done at once.

use super::{
    Sim, engine,
    scheduler::{Subject, YieldPoint},
};
use core::panic::Location;
use ioatlas_dma::{
    platform::{Authority, CopyMemory, NotMemoryError},
    units::*,
};

impl Sim {
    fn check(&self, range: PhysRange) -> Result<(), NotMemoryError> {
        let whole = range.end().is_some_and(|end| {
            let last = PhysAddr(end.0.saturating_sub(1)).page();
            range.len.0 == 0
                || (self.word_at(range.addr.page(), 0).is_some() && self.word_at(last, 0).is_some())
        });
        whole.then_some(()).ok_or(NotMemoryError(range))
    }
    fn peek(&self, at: PhysAddr) -> u8 {
        let word = self.word_at(at.page(), at.offset() as usize / 8);
        word.map_or(0, |word| word.peek().to_le_bytes()[at.0 as usize % 8])
    }
    fn poke(&self, at: PhysAddr, byte: u8) {
        if let Some(word) = self.word_at(at.page(), at.offset() as usize / 8) {
            let mut bytes = word.peek().to_le_bytes();
            bytes[at.0 as usize % 8] = byte;
            word.poke(u64::from_le_bytes(bytes));
        }
    }
}

#[track_caller]
fn point() {
    engine::point(YieldPoint::Turn, Subject::Nothing, Location::caller());
}

// SAFETY: whole ranges are looked up first; words are moved one by one, at points of the schedule.
unsafe impl CopyMemory for Sim {
    fn is_memory(&self, range: PhysRange) -> bool {
        self.check(range).is_ok()
    }
    #[track_caller]
    fn copy(&self, _: Authority, from: PhysRange, to: PhysAddr) -> Result<(), NotMemoryError> {
        self.check(from)?;
        self.check(PhysRange::new(to, from.len))?;
        point();
        for at in 0..from.len.0 {
            self.poke(PhysAddr(to.0 + at), self.peek(PhysAddr(from.addr.0 + at)));
        }
        engine::changed();
        Ok(())
    }
    #[track_caller]
    fn zero(&self, _: Authority, range: PhysRange) -> Result<(), NotMemoryError> {
        self.check(range)?;
        point();
        (0..range.len.0).for_each(|at| self.poke(PhysAddr(range.addr.0 + at), 0));
        engine::changed();
        Ok(())
    }
    #[track_caller]
    fn read(&self, _: Authority, from: PhysAddr, into: &mut [u8]) -> Result<(), NotMemoryError> {
        self.check(PhysRange::new(from, ByteCount(into.len() as u64)))?;
        point();
        for (at, byte) in (from.0..).zip(into) {
            *byte = self.peek(PhysAddr(at));
        }
        Ok(())
    }
    #[track_caller]
    fn write(&self, _: Authority, from: &[u8], to: PhysAddr) -> Result<(), NotMemoryError> {
        self.check(PhysRange::new(to, ByteCount(from.len() as u64)))?;
        point();
        for (at, byte) in (to.0..).zip(from) {
            self.poke(PhysAddr(at), *byte);
        }
        engine::changed();
        Ok(())
    }
}
