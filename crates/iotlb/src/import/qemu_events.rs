// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! QEMU's log with trace events of its IOMMUs (`-trace enable=.. -D file`).
//!
//! The emulated VT-d unit logs translations (`vtd_iotlb_page_hit`, `vtd_iotlb_page_update`) and
//! invalidations (`vtd_inv_desc_iotlb_*`), but a map only if a page walk finds it
//! (`vtd_page_walk_one`, with a caching mode and a listener). So a page is taken to be mapped when
//! it is first translated. Invalidations cover powers of two and can name pages that were not
//! mapped. virtio-iommu logs maps, unmaps and translations, and by `attach` whose domain is which.
//!
//! Nothing in the log tells the time, unless QEMU was built or told to: then
//! `pid@seconds.decimals:` stands before the event. Which CPU did it is never said.

use super::fields::Piece;
use super::raw::{Parsed, Raw, Segment, Via};
use super::tracepoint::nanoseconds;
use super::{Complaint, Fault};
use crate::event::{Direction, Kind, Permission};
use crate::trace::Stamp;
use crate::units::PAGE_LIMIT;
use std::collections::HashMap;

/// Domains whose devices are remembered, at most.
const MAX_DOMAINS: usize = 1 << 16;

/// Bus addresses that are interrupts on x86.
const INTERRUPTS: std::ops::RangeInclusive<u64> = 0xfee0_0000..=0xfeef_ffff;

/// Whether a line is an event of these.
pub(super) fn is_event(line: &str) -> bool {
    let (_, event, _) = split(line);
    meaning(event).is_some()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Translated,
    Fault,
    InvalidatePages,
    InvalidateDomain,
    Walk,
    Attach,
    Map,
    Unmap,
    Translate,
    Mark,
}

fn meaning(event: &str) -> Option<Meaning> {
    Some(match event {
        "vtd_iotlb_page_hit" | "vtd_iotlb_page_update" => Meaning::Translated,
        "vtd_dmar_fault" => Meaning::Fault,
        "vtd_inv_desc_iotlb_pages" => Meaning::InvalidatePages,
        "vtd_inv_desc_iotlb_domain" => Meaning::InvalidateDomain,
        "vtd_page_walk_one" => Meaning::Walk,
        "virtio_iommu_attach" => Meaning::Attach,
        "virtio_iommu_map" => Meaning::Map,
        "virtio_iommu_unmap" => Meaning::Unmap,
        "virtio_iommu_translate" => Meaning::Translate,
        "port92_write" => Meaning::Mark,
        _ => return None,
    })
}

/// Time, event and what follows.
fn split(line: &str) -> (Option<Stamp>, &str, Piece<'_>) {
    let (mut stamp, mut at) = (None, 0);
    if let Some((pid, rest)) = line.split_once('@')
        && pid.bytes().all(|b| b.is_ascii_digit())
        && let Some((clock, event)) = rest.split_once(':')
    {
        stamp = nanoseconds(clock).map(|nanoseconds| Stamp {
            nanoseconds,
            cpu: None,
            task: None,
        });
        at = line.len() - event.len();
    }
    let rest = &line[at..];
    let end = rest.find(' ').unwrap_or(rest.len());
    let payload = Piece {
        text: &rest[end..],
        at: at + end,
    };
    (stamp, &rest[..end], payload)
}

/// What has to be remembered from line to line.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Name of a device by the number of its domain.
    devices: HashMap<u64, String>,
}

impl Log {
    /// What a line says.
    pub fn parse(&mut self, line: &str) -> Result<Parsed, Complaint> {
        let (stamp, event, payload) = split(line);
        let Some(meaning) = meaning(event) else {
            let known = ["vtd_", "virtio_iommu_"]
                .iter()
                .any(|p| event.starts_with(p));
            return Ok(match known || line.trim().is_empty() {
                true => Parsed::Nothing,
                false => Parsed::Unknown,
            });
        };
        let text = Text(payload);
        let (device, raw) = match meaning {
            Meaning::Mark => {
                // bit 0 resets, bit 1 opens the 21st address line; the others are free to carry a
                // number
                let value = text.after("write ")?.hexadecimal()?;
                let phase = value >> 2;
                return Ok(match phase {
                    0 => Parsed::Nothing,
                    phase => Parsed::Mark(phase.to_string()),
                });
            }
            Meaning::Attach => {
                let (domain, endpoint) =
                    (text.after("domain=")?.number()?, text.after("endpoint=")?);
                let device = bus_device_function(endpoint.number()?);
                self.learn(domain, device);
                return Ok(Parsed::Nothing);
            }
            Meaning::Translated => {
                let device = bus_device_function(text.after("sid ")?.hexadecimal()?);
                let entry = text
                    .after("slpte ")
                    .or_else(|_| text.after("pte "))?
                    .hexadecimal()?;
                self.learn(text.after("domain ")?.hexadecimal()?, device.clone());
                let raw = Raw::Translated {
                    address: text.after("iova ")?.hexadecimal()?,
                    phys: entry & (PAGE_LIMIT - 1) & !0xfff,
                    permission: permission(entry),
                };
                (device, raw)
            }
            Meaning::Fault => {
                let device = bus_device_function(text.after("sid ")?.hexadecimal()?);
                let direction = match text.after("write ")?.number()? {
                    0 => Direction::Read,
                    _ => Direction::Write,
                };
                let raw = Raw::Access {
                    address: text.after("addr ")?.hexadecimal()?,
                    direction: Some(direction),
                };
                (device, raw)
            }
            Meaning::InvalidatePages => {
                let first = text.after("addr ")?.hexadecimal()? >> 12;
                let order = text.after("mask ")?;
                let pages = 1u64.checked_shl(order.hexadecimal()? as u32);
                let pages = pages.filter(|pages| *pages <= PAGE_LIMIT);
                let Some(pages) = pages else {
                    return Err(order.complain(Fault::BadNumber(order.text.into())));
                };
                let raw = Raw::Invalidate {
                    first_page: first & !(pages - 1),
                    last_page: first | (pages - 1),
                };
                (self.device(text.after("domain ")?.hexadecimal()?), raw)
            }
            Meaning::InvalidateDomain => {
                let raw = Raw::Invalidate {
                    first_page: 0,
                    last_page: PAGE_LIMIT - 1,
                };
                (self.device(text.after("domain ")?.hexadecimal()?), raw)
            }
            Meaning::Walk => {
                let segment = Segment {
                    address: text.after("iova ")?.hexadecimal()?,
                    bytes: text.after("mask ")?.hexadecimal()?.saturating_add(1),
                };
                let permissions = text.after("perm ")?.number()?;
                let raw = match permissions & 3 {
                    0 => Raw::Unmap {
                        segment,
                        via: Via::Iommu,
                    },
                    _ => Raw::Map {
                        segment,
                        phys: Some(text.after("gpa ")?.hexadecimal()?),
                        permission: permission(permissions),
                        kind: None,
                    },
                };
                let domain = text.after("domain ").and_then(Piece::hexadecimal);
                (self.device(domain.unwrap_or(0)), raw)
            }
            Meaning::Map | Meaning::Unmap => {
                let first = text.after("virt_start=")?.hexadecimal()?;
                let last = text.after("virt_end=")?;
                let end = last.hexadecimal()?;
                if end < first {
                    return Err(last.complain(Fault::BadNumber(last.text.into())));
                }
                let segment = Segment {
                    address: first,
                    bytes: (end - first).saturating_add(1),
                };
                let raw = if meaning == Meaning::Map {
                    Raw::Map {
                        segment,
                        phys: Some(text.after("phys_start=")?.hexadecimal()?),
                        permission: permission(text.after("flags=")?.number()?),
                        kind: None::<Kind>,
                    }
                } else {
                    Raw::Unmap {
                        segment,
                        via: Via::Iommu,
                    }
                };
                (self.device(text.after("domain=")?.number()?), raw)
            }
            Meaning::Translate => {
                let address = text.after("addr=")?.hexadecimal()?;
                if INTERRUPTS.contains(&address) {
                    return Ok(Parsed::Interrupt);
                }
                let direction = match text.after("flag=")?.number()? {
                    1 => Some(Direction::Read),
                    2 => Some(Direction::Write),
                    _ => None,
                };
                let device = bus_device_function(text.after("rid=")?.number()?);
                (device, Raw::Access { address, direction })
            }
        };
        Ok(Parsed::Event {
            stamp,
            task: None,
            device,
            raw,
        })
    }

    fn learn(&mut self, domain: u64, device: String) {
        if self.devices.len() < MAX_DOMAINS {
            self.devices.entry(domain).or_insert(device);
        }
    }

    fn device(&self, domain: u64) -> String {
        let known = self.devices.get(&domain).cloned();
        known.unwrap_or_else(|| format!("domain-{domain:x}"))
    }
}

/// A source id in PCI's notation: `00:04.0` for 0x20.
fn bus_device_function(source: u64) -> String {
    let (bus, device, function) = (source >> 8, source >> 3 & 31, source & 7);
    format!("{bus:02x}:{device:02x}.{function:x}")
}

fn permission(bits: u64) -> Permission {
    match bits & 3 {
        1 => Permission::Read,
        2 => Permission::Write,
        _ => Permission::ReadWrite,
    }
}

/// `word value word value`, as these events print.
struct Text<'a>(Piece<'a>);

impl<'a> Text<'a> {
    /// The word after the first ` key`.
    fn after(&self, key: &'static str) -> Result<Piece<'a>, Complaint> {
        let text = self.0.text;
        let mut from = 0;
        while let Some(found) = text[from..].find(key) {
            let start = from + found;
            from = start + key.len();
            if start == 0 || !text.as_bytes()[start - 1].is_ascii_alphanumeric() {
                let rest = text[from..].trim_start_matches("-> ");
                let at = text.len() - rest.len();
                let end = rest.find([' ', ',']).unwrap_or(rest.len());
                return Ok(Piece {
                    text: &rest[..end],
                    at: self.0.at + at,
                });
            }
        }
        Err(Complaint {
            offset: self.0.at + text.len(),
            reason: Fault::MissingField(key),
        })
    }
}
