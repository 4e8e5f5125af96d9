// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Whether a unit can be served: what it says must be possible, not contradict itself, and be
//! enough.
//!
//! Two things that look like contradictions are none: a MAMV without PSI means nothing (VT-d 4.1
//! §11.4.2), and caching mode goes with invalidation by registers too.

use super::error::{BringUpError, RegisterGroup};
use crate::layout::{AddressWidth, Capabilities, capabilities::FIXED_END};

/// How many domain ids the unit has, if it can be served.
pub(super) fn check(unit: &Capabilities) -> Result<u32, BringUpError> {
    let (cap, ecap) = (unit.cap(), unit.ecap());
    if unit.is_absent() {
        return Err(BringUpError::Absent { cap });
    }
    // at offset 0 there are other registers
    if !unit.queued_invalidation() && unit.iotlb_offset() == 0 {
        return Err(BringUpError::NoInvalidation { ecap });
    }
    let widths = || {
        AddressWidth::ALL
            .iter()
            .filter(|w| unit.supports_width(**w))
    };
    if widths().next().is_none() {
        return Err(BringUpError::NoWidth { cap });
    }
    let bits = unit.iova_bits();
    if widths().all(|w| w.bits() > bits) {
        return Err(BringUpError::NarrowAddresses { bits, cap });
    }
    needs_queue(unit)?;
    places(unit)?;
    unit.domain_ids().ok_or(BringUpError::DomainIds { cap })
}

/// What hardware may offer only with a queue to invalidate it by (§11.4.3).
fn needs_queue(unit: &Capabilities) -> Result<(), BringUpError> {
    let fields = [
        ("DT", unit.device_tlb()),
        ("IR", unit.interrupt_remapping()),
    ];
    match fields.iter().find(|(_, offered)| *offered) {
        Some((field, _)) if !unit.queued_invalidation() => Err(BringUpError::NeedsQueue {
            field,
            ecap: unit.ecap(),
        }),
        _ => Ok(()),
    }
}

/// Fault records and IOTLB registers lie after the fixed registers and not on each other. IRO is 0
/// where a unit has none but the queue.
fn places(unit: &Capabilities) -> Result<(), BringUpError> {
    let (faults, iotlb) = (unit.fault_registers(), unit.iotlb_registers());
    let (cap, ecap) = (unit.cap(), unit.ecap());
    let among = |group, offset| BringUpError::RegisterPlace {
        group,
        offset,
        cap,
        ecap,
    };
    if faults.start < FIXED_END {
        return Err(among(RegisterGroup::FaultRecords, faults.start));
    }
    if iotlb.start == 0 {
        return Ok(());
    }
    if iotlb.start < FIXED_END {
        return Err(among(RegisterGroup::Iotlb, iotlb.start));
    }
    match faults.start < iotlb.end && iotlb.start < faults.end {
        true => Err(BringUpError::RegistersOverlap {
            faults: faults.start,
            records: unit.fault_records(),
            iotlb: iotlb.start,
        }),
        false => Ok(()),
    }
}
