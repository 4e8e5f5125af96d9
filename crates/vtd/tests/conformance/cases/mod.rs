// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The list of cases, by family.

mod batches;
mod bits;
mod designs;
pub mod driver;
mod faults;
mod other_units;
mod queue;
mod random;
mod registers;
mod stale;
mod walk;

pub use crate::{
    bench::*,
    case::{Case, Differs, Only},
    run::{Expected, Run, Tables, entry},
};
pub use ioatlas_dma::{
    table::{Format, LeafMarks, fmt::VtdSecond48},
    units::*,
};
pub use ioatlas_vtd::{layout::*, plan::Invalidation, registers::*};

pub const WIDTHS: [AddressWidth; 2] = [AddressWidth::Bits39, AddressWidth::Bits48];
pub const KINDS: [AccessKind; 2] = [AccessKind::Read, AccessKind::Write];
/// Above all memory and every hole of the machine, and in reach of both widths.
pub const PAGE: IovaPage = IovaPage(0x345_6701);
/// In the same table, with another low byte: QEMU 7.2 compares no more of it in page-selective
/// invalidations.
pub const OTHER: IovaPage = IovaPage(0x345_6733);
/// The domain of [`begin`].
pub const DOMAIN: u16 = 0x0135;

/// A name, and its cases.
pub type Family = (&'static str, fn() -> Vec<Case>);
/// Families, in the order in which they are printed.
pub const FAMILIES: &[Family] = &[
    ("walks", walk::cases),
    ("every bit of every entry", bits::cases),
    ("stale entries", stale::cases),
    ("the queue", queue::cases),
    ("invalidation by registers", registers::cases),
    ("faults", faults::cases),
    ("other units", other_units::cases),
    ("the driver", driver::cases),
    ("every design", designs::cases),
    ("batches", batches::cases),
    ("sequences", random::cases),
];

/// A unit that translates, and [`NIC`] attached to an empty table of its width.
pub fn begin(run: &mut Run<'_>) -> Tables {
    run.start();
    let tables = run.tables();
    run.attach(NIC, tables, DOMAIN);
    tables
}

/// IOTLB invalidations, drained as a driver asks for it.
pub fn iotlb(target: IotlbTarget) -> Invalidation {
    let drain = Drain::READS.with(Drain::WRITES);
    Invalidation::Iotlb(IotlbInvalidate { target, drain })
}
pub fn pages(domain: u16, first: IovaPage, pages_lg2: u32) -> Invalidation {
    let mask = AddressMask::new(pages_lg2).expect("a mask of at most 63");
    let (domain, hint) = (DomainId(domain), LeafHint::Anything);
    iotlb(IotlbTarget::Pages {
        domain,
        first,
        mask,
        hint,
    })
}
pub fn whole(domain: u16) -> Invalidation {
    iotlb(IotlbTarget::Domain(DomainId(domain)))
}
pub const CONTEXTS: Invalidation = Invalidation::Context(ContextInvalidate::Global);
pub fn context_of(device: SourceId, domain: u16) -> Invalidation {
    let (domain, functions) = (DomainId(domain), FunctionMask::Exact);
    Invalidation::Context(ContextInvalidate::Device {
        domain,
        device,
        functions,
    })
}
