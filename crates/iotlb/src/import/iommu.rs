// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The texts of the kernel's `iommu:*` tracepoints (`include/trace/events/iommu.h`).
//!
//! `map` and `unmap` say ranges of IOVAs but neither whose they are nor which call of the DMA
//! interface made them, so all of them go to one device of a made-up name. One buffer can be
//! several `map` events, one a run of physical memory.

use super::fields::Fields;
use super::raw::{Parsed, Raw, Segment, Via};
use super::tracepoint::Tracepoint;
use super::{Complaint, Fault};
use crate::event::{Direction, Permission};
use crate::parse::quoted;

/// The device that all mappings go to.
pub(super) const DEVICE: &str = "any-device";

/// Bit of a fault's flags: the access was a write.
const FAULT_WRITE: u64 = 1;

/// Whether `event` with `payload` is one of these. The names alone are those of others, too.
pub(super) fn is_event(event: &str, payload: &str) -> bool {
    match event {
        "map" | "unmap" => payload.trim_start().starts_with("IOMMU: iova="),
        "io_page_fault" => payload.trim_start().starts_with("IOMMU:"),
        _ => false,
    }
}

/// What a tracepoint of this system says.
pub(super) fn parse(tracepoint: &Tracepoint<'_>) -> Result<Parsed, Complaint> {
    let Tracepoint { event, payload, .. } = *tracepoint;
    if !is_event(event, payload.text) {
        return Ok(Parsed::Unknown);
    }
    let fields = Fields::new(payload);
    let iova = fields.required("iova")?;
    // `first - end`; the end follows from the size
    let first = match iova.split_once(' ') {
        Some((first, _)) => first,
        None => iova,
    };
    let address = first.hexadecimal()?;
    let raw = match event {
        "map" => Raw::Map {
            segment: Segment {
                address,
                bytes: fields.required("size")?.number()?,
            },
            phys: Some(fields.required("paddr")?.hexadecimal()?),
            permission: Permission::ReadWrite, // not recorded
            kind: None,
        },
        "unmap" => {
            let unmapped = fields.required("unmapped_size")?.number()?;
            if unmapped == 0 {
                return Ok(Parsed::Failed);
            }
            Raw::Unmap {
                segment: Segment {
                    address,
                    bytes: unmapped,
                },
                via: Via::Iommu,
            }
        }
        "io_page_fault" => Raw::Access {
            address,
            direction: match fields.required("flags")?.hexadecimal()? & FAULT_WRITE {
                0 => Some(Direction::Read),
                _ => Some(Direction::Write),
            },
        },
        other => return Err(payload.complain(Fault::UnknownEvent(quoted(other)))),
    };
    Ok(Parsed::Event {
        stamp: tracepoint.stamp,
        task: tracepoint.task.map(str::to_owned),
        device: DEVICE.into(),
        raw,
    })
}
