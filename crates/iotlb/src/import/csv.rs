// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Comma-separated values, for captures by tools that have no importer here.
//!
//! The first line names the columns, in any order, of these:
//!
//! | column | in it | |
//! |---|---|---|
//! | `event` | `map`, `unmap`, `access` | required |
//! | `device` | any name without spaces | required |
//! | `iova` | address in bytes, `0x` and hexadecimal, or decimal | required |
//! | `bytes` | length, decimal or `0x` | required for `map` and `unmap` |
//! | `direction` | what the device may do or does: `r`, `w`, `rw` | `rw` if empty, or for an access not recorded |
//! | `phys` | physical address in bytes | may be empty |
//! | `kind` | `alloc`, `page`, `sg` | may be empty |
//! | `time_ns`, `cpu` | when and where, decimal | may be empty |
//! | `task` | name of the task that ran | may be empty |
//!
//! Semicolons may stand in place of the commas. Fields are not quoted and hold neither. Lines that
//! begin with `#` are comments. As such a file is made on purpose, a line that does not fit is an
//! error, not an unknown line.

use super::fields::Piece;
use super::raw::{Parsed, Raw, Segment, Via};
use super::tracepoint::task;
use super::{Complaint, Fault};
use crate::event::{Direction, Kind, Permission};
use crate::parse::quoted;
use crate::trace::Stamp;

const COLUMNS: [&str; 10] = [
    "event",
    "device",
    "iova",
    "bytes",
    "direction",
    "phys",
    "kind",
    "time_ns",
    "cpu",
    "task",
];

/// Of [`COLUMNS`], from the first on, those that every line needs.
const REQUIRED: usize = 3;

/// Of [`COLUMNS`], the one that maps and unmaps need, too.
const BYTES: usize = 3;

/// Where each of [`COLUMNS`] stands in a line.
#[derive(Debug)]
pub(super) struct Table {
    separator: char,
    places: [Option<usize>; 10],
    columns: usize,
}

/// Whether a line names all columns that are required, so that nothing else can be meant.
pub(super) fn is_header(line: &str) -> bool {
    missing(line).is_empty()
}

/// Whether a line can be meant as a header: words, of which one is the name of a column here.
pub(super) fn resembles_header(line: &str) -> bool {
    let separator = separator(line);
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | ' ');
    let mut columns = line.split(separator).map(str::trim);
    line.contains(separator)
        && columns.clone().all(|column| column.chars().all(is_word))
        && columns.any(|column| COLUMNS.contains(&column))
}

/// What stands between the columns that a line names.
fn separator(header: &str) -> char {
    match header.contains(';') {
        true => ';',
        false => ',',
    }
}

/// The required columns that a line does not name.
fn missing(header: &str) -> Vec<&'static str> {
    let separator = separator(header);
    let names = |name: &&str| header.split(separator).any(|column| column.trim() == *name);
    let required = COLUMNS[..REQUIRED].iter().copied();
    required.filter(|name| !names(name)).collect()
}

impl Table {
    /// From the first line.
    pub fn new(header: &str) -> Result<Self, Complaint> {
        let missing = missing(header);
        if !missing.is_empty() {
            let reason = match resembles_header(header) {
                true => Fault::NoColumn(missing.join(", ")),
                false => Fault::NoHeader,
            };
            return Err(Complaint { offset: 0, reason });
        }
        let mut table = Self {
            separator: separator(header),
            places: [None; 10],
            columns: 0,
        };
        for (place, column) in pieces(header, table.separator).enumerate() {
            let Some(index) = COLUMNS.iter().position(|name| *name == column.text) else {
                return Err(column.complain(Fault::UnknownColumn(quoted(column.text))));
            };
            if table.places[index].replace(place).is_some() {
                return Err(column.complain(Fault::ColumnTwice(COLUMNS[index])));
            }
            table.columns = place + 1;
        }
        Ok(table)
    }

    /// What a line says.
    pub fn parse(&self, line: &str) -> Result<Parsed, Complaint> {
        if line.starts_with('#') || line.trim().is_empty() {
            return Ok(Parsed::Nothing);
        }
        let mut found = [None; 10];
        let mut count = 0;
        for (place, field) in pieces(line, self.separator).enumerate() {
            count = place + 1;
            if let Some(index) = self.places.iter().position(|at| *at == Some(place))
                && !field.text.is_empty()
            {
                found[index] = Some(field);
            }
        }
        if count != self.columns {
            let reason = Fault::Columns {
                found: count,
                expected: self.columns,
            };
            return Err(Complaint { offset: 0, reason });
        }
        let required = |index: usize| {
            found[index].ok_or(Complaint {
                offset: line.len(),
                reason: match self.places[index] {
                    Some(_) => Fault::MissingField(COLUMNS[index]),
                    None => Fault::NoColumn(COLUMNS[index].into()),
                },
            })
        };
        let number = |index: usize| found[index].map(Piece::number).transpose();
        let [event, device, iova] = [required(0)?, required(1)?, required(2)?];
        if device.text.contains(char::is_whitespace) {
            return Err(device.complain(Fault::BadDevice(quoted(device.text))));
        }
        let address = iova.number()?;
        let segment = || -> Result<Segment, Complaint> {
            Ok(Segment {
                address,
                bytes: required(BYTES)?.number()?,
            })
        };
        let raw = match event.text {
            "map" => Raw::Map {
                segment: segment()?,
                phys: number(5)?,
                permission: permission(found[4])?,
                kind: kind(found[6])?,
            },
            "unmap" => Raw::Unmap {
                segment: segment()?,
                via: Via::Iommu,
            },
            "access" => Raw::Access {
                address,
                direction: match (found[4], permission(found[4])?) {
                    (Some(_), Permission::Read) => Some(Direction::Read),
                    (Some(_), Permission::Write) => Some(Direction::Write),
                    _ => None,
                },
            },
            other => return Err(event.complain(Fault::UnknownEvent(quoted(other)))),
        };
        let cpu = number(8)?;
        Ok(Parsed::Event {
            stamp: number(7)?.map(|nanoseconds| Stamp {
                nanoseconds,
                cpu: cpu.map(|cpu| u32::try_from(cpu).unwrap_or(u32::MAX)),
                task: None,
            }),
            task: found[9].and_then(|name| task(name.text)).map(str::to_owned),
            device: device.text.into(),
            raw,
        })
    }
}

fn pieces(line: &str, separator: char) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = Some(Piece { text: line, at: 0 });
    std::iter::from_fn(move || {
        let piece = rest?;
        let (field, after) = match piece.split_once(separator) {
            Some((field, after)) => (field, Some(after)),
            None => (piece, None),
        };
        rest = after;
        Some(field.trim())
    })
}

fn permission(field: Option<Piece<'_>>) -> Result<Permission, Complaint> {
    let Some(field) = field else {
        return Ok(Permission::ReadWrite);
    };
    match field.text {
        "r" => Ok(Permission::Read),
        "w" => Ok(Permission::Write),
        "rw" => Ok(Permission::ReadWrite),
        other => Err(field.complain(Fault::BadDirection(quoted(other)))),
    }
}

fn kind(field: Option<Piece<'_>>) -> Result<Option<Kind>, Complaint> {
    let Some(field) = field else { return Ok(None) };
    match field.text {
        "alloc" => Ok(Some(Kind::Alloc)),
        "page" => Ok(Some(Kind::Page)),
        "sg" => Ok(Some(Kind::ScatterGather)),
        other => Err(field.complain(Fault::BadKind(quoted(other)))),
    }
}
