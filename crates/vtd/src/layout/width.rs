// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How wide IOVAs are, and so how many levels a second-stage table has.

use core::fmt;

/// A width that second-stage tables may have (VT-d 4.1 §9.3, AW; §11.4.2, SAGAW).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum AddressWidth {
    /// 39 bits, 3 levels.
    Bits39 = 1,
    /// 48 bits, 4 levels.
    Bits48 = 2,
    /// 57 bits, 5 levels.
    Bits57 = 3,
}

impl AddressWidth {
    /// Every width, the narrowest first.
    pub const ALL: [AddressWidth; 3] = [
        AddressWidth::Bits39,
        AddressWidth::Bits48,
        AddressWidth::Bits57,
    ];

    /// The code of AW; also the number of the bit in SAGAW.
    pub fn code(self) -> u8 {
        self as u8
    }
    /// How many levels a walk has.
    pub fn levels(self) -> u32 {
        u32::from(self.code()) + 2
    }
    /// How many bits an IOVA has.
    pub fn bits(self) -> u32 {
        12 + 9 * self.levels()
    }
    /// The width of a table with that many levels, if there is one.
    pub fn from_levels(levels: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|width| width.levels() == levels)
    }
}

impl fmt::Display for AddressWidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bits ({} levels)", self.bits(), self.levels())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_bits_and_levels_are_those_of_the_specification() {
        let table = AddressWidth::ALL.map(|w| (w.code(), w.bits(), w.levels()));
        assert_eq!(table, [(1, 39, 3), (2, 48, 4), (3, 57, 5)]);
    }

    #[test]
    fn only_three_to_five_levels_have_a_width() {
        for levels in 0..100 {
            let width = AddressWidth::from_levels(levels);
            assert_eq!(width.is_some(), (3..=5).contains(&levels), "{levels}");
            assert!(width.is_none_or(|w| w.levels() == levels));
        }
    }
}
