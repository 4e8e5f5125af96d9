// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the driver writes, bit by bit: the items of the coverage table, and a way to drop one of
//! them.

use ioatlas_vtd::{layout::Words, registers::*};
use std::sync::Arc;

/// A structure in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    Root,
    Context,
    Table,
    Leaf,
    LargeLeaf,
    ContextInvalidate,
    IotlbInvalidate,
    Wait,
    InterruptInvalidate,
    DeviceTlbInvalidate,
}

/// Where an item is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Bits of a register, by its offset.
    Register(u16, u64),
    /// Bits of the low and of the high word of a structure.
    Memory(Class, u64, u64),
}

/// How an item is spoilt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spoil {
    /// The bits are written as 0.
    Dropped,
    /// The bits are written as 1.
    Set,
    /// What should be the bits is their complement.
    Flipped,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    pub name: &'static str,
    pub place: Place,
    pub spoil: Spoil,
}

impl Spoil {
    fn apply(self, value: u64, bits: u64) -> u64 {
        match self {
            Spoil::Dropped => value & !bits,
            Spoil::Set => value | bits,
            Spoil::Flipped => value ^ bits,
        }
    }
}

impl Item {
    /// What is written instead of `words`.
    pub fn spoil(&self, class: Class, words: Words) -> Words {
        match self.place {
            Place::Memory(of, low, high) if of == class => Words {
                low: self.spoil.apply(words.low, low),
                high: self.spoil.apply(words.high, high),
            },
            _ => words,
        }
    }
}

/// Registers of which one item is spoilt on its way.
pub struct Spoilt {
    pub registers: Arc<dyn Registers>,
    pub item: &'static Item,
}

impl Spoilt {
    fn value(&self, at: u16, value: u64) -> u64 {
        match self.item.place {
            Place::Register(of, bits) if of == at => self.item.spoil.apply(value, bits),
            _ => value,
        }
    }
}

// SAFETY: they are those inside, but for one bit that is spoilt on purpose: of a software unit, in
// memory of its own.
unsafe impl Registers for Spoilt {
    fn table_entries_lg2(&self) -> u32 {
        self.registers.table_entries_lg2()
    }
    fn read32(&self, register: Reg32) -> u32 {
        self.registers.read32(register)
    }
    fn read64(&self, register: Reg64) -> u64 {
        self.registers.read64(register)
    }
    fn write32(&self, register: Reg32, value: u32) {
        let value = self.value(register.0, value.into()) as u32;
        self.registers.write32(register, value);
    }
    fn write64(&self, register: Reg64, value: u64) {
        let value = self.value(register.0, value);
        self.registers.write64(register, value);
    }
}
