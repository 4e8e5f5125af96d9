// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The texts of the kernel's `dma:*` tracepoints (`include/trace/events/dma.h`).
//!
//! They exist since Linux 6.12 and print a device and then `key=value` fields. What changed since:
//! maps of single buffers are `dma_map_page` and `dma_map_resource` up to 6.17 and `dma_map_phys`
//! after; allocations got a direction in 6.13 and siblings for pages and tables of segments; lists
//! got `nents=` and `ents=` when their record was limited to 128 entries. Only the keys that are
//! needed are asked for, so that fields may come and go.
//!
//! They are printed after the call, so an unmap can be reported after another CPU's map of the same
//! range. Addresses are what the device uses: physical ones if no IOMMU translates for it.

use super::fields::{Fields, Piece, Print};
use super::raw::{Owner, Parsed, Raw, Segment, Via};
use super::tracepoint::Tracepoint;
use super::{Complaint, Fault};
use crate::event::{Kind, Permission};
use crate::parse::quoted;

/// What the kernel returns as address of a mapping that failed.
const MAPPING_ERROR: u64 = u64::MAX;

/// Whether `event` is one of the tracepoints that tell of mappings.
pub(super) fn is_event(event: &str) -> bool {
    call(event).is_some()
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Map,
    Unmap,
    Alloc,
    Free,
    MapList,
    UnmapList,
    Sync(Owner),
    SyncList(Owner),
    /// Nothing is mapped or unmapped.
    Failure,
}

fn call(event: &str) -> Option<Call> {
    Some(match event {
        "dma_map_page" | "dma_map_phys" | "dma_map_resource" => Call::Map,
        "dma_unmap_page" | "dma_unmap_phys" | "dma_unmap_resource" => Call::Unmap,
        "dma_alloc" | "dma_alloc_pages" | "dma_alloc_sgt" => Call::Alloc,
        "dma_free" | "dma_free_pages" | "dma_free_sgt" => Call::Free,
        "dma_map_sg" => Call::MapList,
        "dma_unmap_sg" => Call::UnmapList,
        "dma_sync_single_for_cpu" => Call::Sync(Owner::Cpu),
        "dma_sync_single_for_device" => Call::Sync(Owner::Device),
        "dma_sync_sg_for_cpu" => Call::SyncList(Owner::Cpu),
        "dma_sync_sg_for_device" => Call::SyncList(Owner::Device),
        "dma_map_sg_err" | "dma_alloc_sgt_err" => Call::Failure,
        _ => return None,
    })
}

/// What a tracepoint of this system says.
pub(super) fn parse(tracepoint: &Tracepoint<'_>) -> Result<Parsed, Complaint> {
    let Some(call) = call(tracepoint.event) else {
        return Ok(Parsed::Unknown);
    };
    let payload = tracepoint.payload.trim();
    let (print, device, fields) = match payload.strip_prefix("[FAILED TO PARSE]") {
        Some(fields) => {
            let fields = Fields::new(fields.trim());
            (Print::Raw, fields.required("device")?, fields)
        }
        None => match payload.split_once(' ') {
            Some((device, fields)) => (Print::Kernel, device, Fields::new(fields)),
            None => (
                Print::Kernel,
                payload,
                Fields::new(Piece {
                    text: "",
                    at: payload.at,
                }),
            ),
        },
    };
    if device.text.is_empty() || device.text.contains(['=', ' ']) {
        return Err(device.complain(Fault::MissingField("device")));
    }
    let text = Text { print, fields };
    let Some(raw) = text.raw(call)? else {
        return Ok(Parsed::Failed);
    };
    Ok(Parsed::Event {
        stamp: tracepoint.stamp,
        task: tracepoint.task.map(str::to_owned),
        device: device.text.into(),
        raw,
    })
}

struct Text<'a> {
    print: Print,
    fields: Fields<'a>,
}

impl Text<'_> {
    fn raw(&self, call: Call) -> Result<Option<Raw>, Complaint> {
        Ok(Some(match call {
            Call::Failure => return Ok(None),
            Call::Map => {
                let segment = self.segment("dma_addr")?;
                if segment.address == MAPPING_ERROR {
                    return Ok(None);
                }
                Raw::Map {
                    segment,
                    phys: Some(self.address("phys_addr")?),
                    permission: self.permission()?,
                    kind: Some(Kind::Page),
                }
            }
            Call::Alloc => {
                let segment = self.segment("dma_addr")?;
                // how the kernel records an allocation that failed
                if segment.address == 0 {
                    return Ok(None);
                }
                Raw::Map {
                    segment,
                    phys: None,
                    permission: match self.fields.optional("dir") {
                        Some(_) => self.permission()?,
                        None => Permission::ReadWrite,
                    },
                    kind: Some(Kind::Alloc),
                }
            }
            Call::Unmap | Call::Free => {
                // the kernel's print of an unmap calls the field otherwise than the field is called
                let key = match (call, self.print) {
                    (Call::Unmap, Print::Raw) => "addr",
                    _ => "dma_addr",
                };
                Raw::Unmap {
                    segment: self.segment(key)?,
                    via: Via::Dma,
                }
            }
            Call::MapList => return self.map_list().map(Some),
            Call::UnmapList => Raw::UnmapList {
                phys: self.fields.array(
                    match self.print {
                        Print::Kernel => "phys_addrs",
                        Print::Raw => "addrs",
                    },
                    8,
                )?,
            },
            Call::Sync(to) => Raw::Sync {
                segments: vec![self.segment("dma_addr")?],
                to,
            },
            Call::SyncList(to) => Raw::Sync {
                segments: self.segments()?,
                to,
            },
        }))
    }

    fn map_list(&self) -> Result<Raw, Complaint> {
        let (segments, phys) = (self.segments()?, self.fields.array("phys_addrs", 8)?);
        let (entries, mapped) = match self.print {
            Print::Kernel => ("nents", "ents"),
            Print::Raw => ("full_nents", "full_ents"),
        };
        let cut = self.total(mapped, segments.len())?;
        Ok(Raw::MapList {
            permission: self.permission()?,
            entries: self.total(entries, phys.len())?,
            cut: cut.saturating_sub(segments.len()) as u64,
            segments,
            phys,
        })
    }

    /// `key=traced/total`, or `key=total`; `traced` where there is no such key.
    fn total(&self, key: &'static str, traced: usize) -> Result<usize, Complaint> {
        let Some(value) = self.fields.optional(key) else {
            return Ok(traced);
        };
        let total = match value.split_once('/') {
            Some((_, total)) => total,
            None => value,
        };
        // ` [TRUNCATED]` may follow
        let number = match total.split_once(' ') {
            Some((number, _)) => number,
            None => total,
        };
        Ok(usize::try_from(number.number()?)
            .unwrap_or(usize::MAX)
            .max(traced))
    }

    fn segments(&self) -> Result<Vec<Segment>, Complaint> {
        let addresses = self.fields.array("dma_addrs", 8)?;
        let key = match self.print {
            Print::Kernel => "sizes",
            Print::Raw => "lengths",
        };
        let lengths = self.fields.array(key, 4)?;
        if addresses.len() != lengths.len() {
            let reason = Fault::Lengths {
                addresses: addresses.len(),
                lengths: lengths.len(),
            };
            return Err(self.fields.required(key)?.complain(reason));
        }
        let pairs = addresses.into_iter().zip(lengths);
        Ok(pairs
            .map(|(address, bytes)| Segment { address, bytes })
            .collect())
    }

    fn segment(&self, address: &'static str) -> Result<Segment, Complaint> {
        Ok(Segment {
            address: self.address(address)?,
            bytes: self.fields.required("size")?.number()?,
        })
    }

    fn address(&self, key: &'static str) -> Result<u64, Complaint> {
        let value = self.fields.required(key)?;
        match self.print {
            Print::Kernel => value.hexadecimal(),
            Print::Raw => value.number(),
        }
    }

    fn permission(&self) -> Result<Permission, Complaint> {
        let value = self.fields.required("dir")?;
        match value.text {
            "TO_DEVICE" | "1" => Ok(Permission::Read),
            "FROM_DEVICE" | "2" => Ok(Permission::Write),
            "BIDIRECTIONAL" | "0" | "NONE" | "3" => Ok(Permission::ReadWrite),
            other => Err(value.complain(Fault::BadDirection(quoted(other)))),
        }
    }
}
