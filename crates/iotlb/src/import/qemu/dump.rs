// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Register dumps of an x86-64 guest (`-d cpu`).
//!
//! A dump has about 20 lines. It begins with `RAX=` and is over, for us, at `GS =`: all that
//! matters stands before. A general register is `NAM=` and 16 hexadecimal digits, four to a line,
//! one space between.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// The registers that carry arguments, and where the guest was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Registers {
    pub rdi: u64,
    pub rsi: u64,
    pub rdx: u64,
    pub rcx: u64,
    pub r8: u64,
    pub r9: u64,
    pub rsp: u64,
    pub rip: u64,
    /// Base address of GS: in the kernel, the per-CPU area.
    pub gs: u64,
}

impl Registers {
    /// A number that this call shares with its repetition and, all but certainly, with no other
    /// under way. The CPU is not in it: the task may be moved in between. The stack is: each
    /// task has its own.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        Self { gs: 0, ..*self }.hash(&mut hasher);
        hasher.finish()
    }
}

/// A dump as far as its lines have come.
#[derive(Debug, Default)]
pub(super) struct Dump {
    registers: Registers,
    /// Which of the lines were seen, a bit each.
    seen: u8,
    finished: bool,
}

const ALL_LINES: u8 = 0b1111;
/// Bytes of one register with the space after it: `RAX=0123456789abcdef `.
const FIELD: usize = 21;

impl Dump {
    /// Takes a line; false if it is none of a dump.
    pub fn line(&mut self, line: &[u8]) -> bool {
        let bit = match line.get(..4) {
            Some(b"RAX=") => {
                *self = Self::default();
                1
            }
            Some(b"RSI=") => 2,
            Some(b"R8 =") => 4,
            Some(b"RIP=") => 8,
            Some(b"GS =") => {
                // selector, then the base
                if let Some(base) = line.get(9..25).and_then(hex) {
                    self.registers.gs = base;
                    self.finished = self.seen == ALL_LINES;
                }
                self.seen = 0;
                return true;
            }
            _ => return false,
        };
        let r = &mut self.registers;
        let mut whole = true;
        for field in line.chunks(FIELD) {
            let into = match field.get(..4) {
                Some(b"RCX=") => &mut r.rcx,
                Some(b"RDX=") => &mut r.rdx,
                Some(b"RSI=") => &mut r.rsi,
                Some(b"RDI=") => &mut r.rdi,
                Some(b"RSP=") => &mut r.rsp,
                Some(b"R8 =") => &mut r.r8,
                Some(b"R9 =") => &mut r.r9,
                Some(b"RIP=") => &mut r.rip,
                _ => continue,
            };
            match field.get(4..20).and_then(hex) {
                Some(value) => *into = value,
                None => whole = false,
            }
        }
        if whole {
            self.seen |= bit;
        }
        true
    }

    /// The registers, once, after the last line of a dump of which no line was missing or cut.
    pub fn finished(&mut self) -> Option<Registers> {
        std::mem::take(&mut self.finished).then_some(self.registers)
    }
}

fn hex(digits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok()?;
    // the parser would take a sign
    let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(text, 16).ok())?
}
