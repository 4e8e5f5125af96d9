// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How firmware announces remapping units: the ACPI table DMAR (VT-d 4.1 §8).
//!
//! # Theory
//!
//! The table lists *units* (DRHD: where the registers are), *reserved memory* that devices use
//! before any driver does (RMRR), the root ports that may pass ATS requests (ATSR), memory affinity
//! of units (RHSA) and names of ACPI devices (ANDD). Units, reserved memory and root ports say
//! which devices they concern by *scopes*: a bus and a path of (device, function) from it, down
//! through bridges. What lies behind a bridge is in the bridge's own bus number registers, which
//! firmware or the kernel wrote: [`PciConfig`] reads them.
//!
//! [`find`] goes from the root pointer to the table's bytes, [`Dmar::parse`] from bytes to values,
//! [`Dmar::build`] back; [`Dmar::unit_for`], [`Dmar::reserved_for`] and [`Dmar::may_use_ats`]
//! answer which structures concern a device. [`units`](crate::units) brings the units up.
//!
//! Everything read is checked: a length that leads out of its container, a path that no PCI
//! function has, reserved memory that is no range of pages, two units in one place, two units for
//! what is left of one segment are errors that name the byte offset and the numbers. What is
//! allocated is bounded by the bytes that are there. Reserved bits are ignored and built as 0.
//!
//! Not handled: SATC, SIDP and kinds that are not defined yet; they are skipped, and
//! [`Dmar::skipped`] counts them. Virtual functions that are enabled after the question was asked
//! (ask again), and those of which [`PciConfig`] does not tell.

mod build;
mod error;
pub mod find;
mod parse;
mod routing;
mod sr_iov;

pub use build::BuildError;
pub use error::DmarError;
pub use routing::PciConfig;

use alloc::{string::String, vec::Vec};
use core::fmt;
use ioatlas_dma::units::{ByteCount, GRANULE, PhysAddr, PhysRange, PhysRun, SourceId};

/// A PCI segment group: source ids are unique within one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Segment(pub u16);

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}", self.0)
    }
}

/// The whole table (§8.1).
#[allow(missing_docs)] // its fields say it
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dmar {
    /// Ids and revisions of the header.
    pub maker: Maker,
    /// How many bits a physical address of this machine has for DMA, 1 to 256 (the
    /// field holds one less).
    pub host_address_bits: u16,
    /// INTR_REMAP: the platform supports interrupt remapping.
    pub interrupt_remapping: bool,
    /// X2APIC_OPT_OUT: firmware asks not to enable x2APIC.
    pub x2apic_opt_out: bool,
    /// DMA_CTRL_PLATFORM_OPT_IN_FLAG: firmware let no device do DMA but into reserved memory.
    pub dma_opt_in: bool,
    /// Units, in the order of the table.
    pub units: Vec<Drhd>,
    pub reserved: Vec<Rmrr>,
    /// Root ports that may pass ATS requests.
    pub ats: Vec<Atsr>,
    /// Memory affinity of units.
    pub affinity: Vec<Rhsa>,
    /// Names of ACPI devices.
    pub names: Vec<Andd>,
    /// How many structures of other kinds were skipped. None is built.
    pub skipped: u32,
}

/// The part of the header that identifies a table's maker and revision (ACPI 6.5 §5.2.6).
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Maker {
    /// Revision of the table's layout.
    pub revision: u8,
    pub oem: [u8; 6],
    pub oem_table: [u8; 8],
    pub oem_revision: u32,
    /// Creator ID, the tool that made it.
    pub creator: [u8; 4],
    pub creator_revision: u32,
}

impl Default for Maker {
    fn default() -> Self {
        Maker {
            revision: 1,
            oem: *b"IOATLS",
            oem_table: *b"IOATLAS ",
            oem_revision: 1,
            creator: *b"IOAT",
            creator_revision: 1,
        }
    }
}

/// A remapping unit (§8.3).
#[allow(missing_docs)] // its fields say it
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drhd {
    /// The PCI segment of its devices.
    pub segment: Segment,
    /// Where its registers begin; a whole granule.
    pub registers: PhysAddr,
    /// Log2 of the size of the register block in pages of 4 KiB, at most 15 (§8.3, Size).
    pub register_pages_lg2: u8,
    pub devices: Covers,
    /// Under [`Covers::Listed`], all of them. Under [`Covers::Rest`] not the PCI ones, but I/O
    /// APICs, timers and ACPI devices.
    pub scopes: Vec<Scope>,
}

impl Drhd {
    /// How large the register block is said to be.
    pub fn register_bytes(&self) -> ByteCount {
        ByteCount(GRANULE << self.register_pages_lg2)
    }
    /// Whether a register block can lie there: whole pages, not at 0, all of it within a physical
    /// address, a size that has a code.
    fn has_a_place(&self) -> bool {
        let first = self.registers;
        first.0 != 0
            && first.offset() == 0
            && self.register_pages_lg2 < 16
            && PhysRange::new(first, self.register_bytes()).end().is_some()
    }
    /// What keeps it from standing in one table with `others`.
    fn conflict(&self, others: &[Drhd]) -> Option<Conflict> {
        let rest = |u: &Drhd| u.devices == Covers::Rest && u.segment == self.segment;
        if others.iter().any(|u| u.registers == self.registers) {
            Some(Conflict::Registers)
        } else if rest(self) && others.iter().any(rest) {
            Some(Conflict::Rest)
        } else {
            None
        }
    }
}

/// Why two units contradict each other.
enum Conflict {
    /// They have one register block.
    Registers,
    /// Both cover what is left of their segment.
    Rest,
}

/// Which devices of its segment a unit, or an ATSR, concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Covers {
    /// Those in its scopes.
    Listed,
    /// Whatever no other one lists (INCLUDE_PCI_ALL; ALL_PORTS).
    Rest,
}

/// Memory that some devices must go on reaching at its own address (§8.4).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rmrr {
    /// Of which segment the devices are.
    pub segment: Segment,
    /// The memory, whole pages.
    pub memory: PhysRun,
    /// The devices that use it.
    pub scopes: Vec<Scope>,
}

/// Root ports under which devices may use ATS (§8.5).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Atsr {
    /// The segment of the ports.
    pub segment: Segment,
    /// All ports of it, or those in the scopes.
    pub ports: Covers,
    /// Under [`Covers::Listed`], the ports.
    pub scopes: Vec<Scope>,
}

/// To which memory a unit is near (§8.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rhsa {
    /// The unit, by its registers.
    pub registers: PhysAddr,
    /// The proximity domain, as of the ACPI table SRAT.
    pub proximity: u32,
}

/// The name of an ACPI device (§8.7).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Andd {
    /// Its number: the enumeration id of its scopes.
    pub number: u8,
    /// Its path in the ACPI namespace.
    pub name: String,
}

/// A device that a structure concerns (§8.3.1).
#[allow(missing_docs)] // its fields say it
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scope {
    pub kind: ScopeKind,
    /// Of an I/O APIC, timer or ACPI device: its number.
    pub enumeration_id: u8,
    /// The bus where the path begins.
    pub start_bus: u8,
    /// From there, bridge by bridge, to the function; never empty.
    pub path: Vec<PathStep>,
}

/// One function on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathStep {
    /// Its device, 0 to 31.
    pub device: u8,
    /// Its function, 0 to 7.
    pub function: u8,
}

impl PathStep {
    /// The source id on `bus`.
    pub fn on(self, bus: u8) -> SourceId {
        SourceId(u16::from(bus) << 8 | u16::from(self.device) << 3 | u16::from(self.function))
    }
}

/// What a scope names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScopeKind {
    /// One PCI function (type 1).
    Endpoint,
    /// A bridge and everything behind it (type 2).
    Bridge,
    /// An I/O APIC (type 3).
    IoApic,
    /// A timer that sends messages (type 4).
    Timer,
    /// A device that only ACPI names (type 5).
    AcpiDevice,
    /// A type that is not defined yet.
    Other(u8),
}

impl ScopeKind {
    fn code(self) -> u8 {
        match self {
            ScopeKind::Endpoint => 1,
            ScopeKind::Bridge => 2,
            ScopeKind::IoApic => 3,
            ScopeKind::Timer => 4,
            ScopeKind::AcpiDevice => 5,
            ScopeKind::Other(code) => code,
        }
    }
    fn of(code: u8) -> Self {
        match code {
            1 => ScopeKind::Endpoint,
            2 => ScopeKind::Bridge,
            3 => ScopeKind::IoApic,
            4 => ScopeKind::Timer,
            5 => ScopeKind::AcpiDevice,
            code => ScopeKind::Other(code),
        }
    }
}

impl Scope {
    /// One PCI function on a root bus.
    pub fn endpoint(function: SourceId) -> Self {
        let step = PathStep {
            device: (function.0 >> 3 & 31) as u8,
            function: (function.0 & 7) as u8,
        };
        Scope {
            kind: ScopeKind::Endpoint,
            enumeration_id: 0,
            start_bus: (function.0 >> 8) as u8,
            path: alloc::vec![step],
        }
    }
    /// A bridge on a root bus, and everything behind it.
    pub fn bridge(function: SourceId) -> Self {
        Scope {
            kind: ScopeKind::Bridge,
            ..Scope::endpoint(function)
        }
    }
}

/// Byte offsets and sizes, for parsing and building.
mod layout {
    /// The header that every ACPI table has.
    pub const ACPI_HEADER: usize = 36;
    /// That, host address width, flags and ten reserved bytes.
    pub const HEADER: usize = 48;
    pub const LENGTH_AT: usize = 4;
    pub const CHECKSUM_AT: usize = 9;
    pub const SIGNATURE: [u8; 4] = *b"DMAR";
    /// Kind and length of a structure.
    pub const STRUCTURE_HEADER: usize = 4;
    /// A scope without its path, and a step of a path.
    pub const SCOPE_HEADER: usize = 6;
    pub const STEP: usize = 2;

    pub const DRHD: u16 = 0;
    pub const RMRR: u16 = 1;
    pub const ATSR: u16 = 2;
    pub const RHSA: u16 = 3;
    pub const ANDD: u16 = 4;
    /// Bytes of each before its scopes (or, of an ANDD, before its name).
    pub const DRHD_BYTES: usize = 16;
    pub const RMRR_BYTES: usize = 24;
    pub const ATSR_BYTES: usize = 8;
    pub const RHSA_BYTES: usize = 20;
    pub const ANDD_BYTES: usize = 8;

    /// The sum of all bytes of a table is 0.
    pub fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }
}
