// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Why a unit blocks a request, in legacy mode (VT-d 4.1 §7.1.3 for DMA, §5.1.4.1 for interrupts).

use core::fmt;

/// Reasons: a variant, its code, and a sentence for each.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $sentence:literal;)*) => {
        /// Why a request was blocked.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
            /// One that legacy mode does not have.
            Other(u8),
        }
        impl Reason {
            /// Every reason that legacy mode has.
            pub const ALL: &[Reason] = &[$(Reason::$name,)*];
            /// From the field FR.
            pub fn decode(code: u8) -> Self {
                match code {
                    $($code => Reason::$name,)*
                    other => Reason::Other(other),
                }
            }
            /// The value of FR.
            pub fn code(self) -> u8 {
                match self {
                    $(Reason::$name => $code,)*
                    Reason::Other(code) => code,
                }
            }
        }
        /// A sentence, and the code to look it up by.
        impl fmt::Display for Reason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let sentence = match self {
                    $(Reason::$name => $sentence,)*
                    Reason::Other(_) => "for a reason that legacy mode does not have",
                };
                write!(f, "{sentence} (reason {:#x})", self.code())
            }
        }
    };
}

reasons! {
    /// Root entry not present.
    RootAbsent = 0x1, "no device on its bus is attached to a domain";
    /// Context entry not present.
    ContextAbsent = 0x2, "it is attached to no domain";
    /// Context entry with a width or translation type that the unit does not have.
    ContextInvalid = 0x3, "its context entry asks for a table width or translation type that the unit does not have";
    /// Address beyond the width.
    BeyondWidth = 0x4, "the address is wider than its domain or the unit can translate";
    /// No write permission, or nothing mapped.
    NotWritable = 0x5, "nothing is mapped there for writing";
    /// No read permission, or nothing mapped.
    NotReadable = 0x6, "nothing is mapped there for reading";
    /// A paging structure could not be read.
    TableUnreadable = 0x7, "the unit could not read a second-stage table on the way to the page";
    /// The root table could not be read.
    RootUnreadable = 0x8, "the unit could not read its root table";
    /// The context table could not be read.
    ContextUnreadable = 0x9, "the unit could not read the context table of its bus";
    /// A reserved bit in a root entry.
    RootReserved = 0xa, "the root entry of its bus has a reserved bit set";
    /// A reserved bit in a context entry.
    ContextReserved = 0xb, "its context entry has a reserved bit set";
    /// A reserved bit in a second-stage entry.
    TableReserved = 0xc, "a second-stage entry on the way to the page has a reserved bit set";
    /// A translated or translation request that its context entry does not permit.
    TypeBlocked = 0xd, "it used a TLB of its own, and its context entry does not let it";
    /// The translation leads into the interrupt range.
    InterruptRange = 0xe, "the page is mapped to the address range of interrupts";
    /// Reserved field in an interrupt request.
    InterruptReserved = 0x20, "the interrupt request has a reserved field set";
    /// Interrupt index beyond the table.
    InterruptBeyondTable = 0x21, "the interrupt-remapping table has no such entry";
    /// Interrupt entry not present.
    InterruptAbsent = 0x22, "that interrupt-remapping entry is not present";
    /// The interrupt table could not be read.
    InterruptUnreadable = 0x23, "the unit could not read the interrupt-remapping table";
    /// A reserved bit in an interrupt entry.
    InterruptEntryReserved = 0x24, "that interrupt-remapping entry has a reserved bit set";
    /// Compatibility format is blocked.
    InterruptFormat = 0x25, "the interrupt request has the old format, which is turned off";
    /// The entry belongs to another device.
    InterruptSource = 0x26, "that interrupt-remapping entry belongs to another device";
    /// A posted-interrupt descriptor could not be read.
    PostedUnreadable = 0x27, "the unit could not read the posted-interrupt descriptor";
    /// A reserved bit in a posted-interrupt descriptor.
    PostedReserved = 0x28, "the posted-interrupt descriptor has a reserved bit set";
}

impl Reason {
    /// Whether an interrupt was blocked, and not an access to memory.
    pub fn is_of_interrupts(self) -> bool {
        (0x20..0x30).contains(&self.code())
    }
}
