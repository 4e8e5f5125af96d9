// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Events as lines of a trace, as the reader takes them.

use crate::event::{Direction, Event, Permission};
use std::fmt;

/// The first line of every trace, without its end.
pub const HEADER: &str = "# ioatlas-trace 2";

/// The first line of older ones, in which no map says its bytes and no stamp its task.
pub(crate) const HEADER_1: &str = "# ioatlas-trace 1";

/// One event as a line, without its end. What the reader makes of it is the event, if `device` has
/// no white space in it.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// The device's name. The index in the event is not looked at.
    pub device: &'a str,
    /// The event, whose device index is not used.
    pub event: Event,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device;
        match self.event {
            Event::Map {
                range,
                permission,
                phys,
                kind,
                extent,
                ..
            } => {
                let (first, pages) = (range.first(), range.pages().0);
                write!(f, "M {device} {first} {pages} {permission}")?;
                // what is unknown is written where something follows
                let last = [phys.is_some(), kind.is_some(), extent.is_some()];
                let fields = last.iter().rposition(|known| *known).map_or(0, |at| at + 1);
                match phys {
                    Some(phys) => write!(f, " {phys}")?,
                    None if fields > 0 => f.write_str(" -")?,
                    None => {}
                }
                match kind {
                    Some(kind) => write!(f, " {kind}")?,
                    None if fields > 1 => f.write_str(" -")?,
                    None => {}
                }
                match extent {
                    Some(extent) => {
                        let bytes = extent.bytes(range.pages());
                        write!(f, " {}+{bytes}", extent.offset())
                    }
                    None => Ok(()),
                }
            }
            Event::Unmap { range, .. } => {
                let (first, pages) = (range.first(), range.pages().0);
                write!(f, "U {device} {first} {pages}")
            }
            Event::Access {
                page, direction, ..
            } => {
                write!(f, "A {device} {page} ")?;
                match direction {
                    Some(direction) => write!(f, "{direction}"),
                    None => f.write_str("?"),
                }
            }
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Permission::Read => "r",
            Permission::Write => "w",
            Permission::ReadWrite => "rw",
        })
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Read => "r",
            Direction::Write => "w",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceId, Extent, IovaPage, Kind, Limits, PageCount, PageRange, PhysPage, Trace};

    #[test]
    fn every_form_of_line_is_read_back() {
        let device = DeviceId(0);
        let first = IovaPage::new((1 << 52) - 3).unwrap();
        let range = PageRange::new(first, PageCount(3)).unwrap();
        let mut events = vec![Event::Unmap { device, range }];
        for permission in [Permission::Read, Permission::Write, Permission::ReadWrite] {
            for phys in [None, PhysPage::new(0x626f)] {
                for kind in [
                    None,
                    Some(Kind::Alloc),
                    Some(Kind::Page),
                    Some(Kind::ScatterGather),
                ] {
                    for extent in [None, Extent::new(PageCount(3), 4095, 4098)] {
                        events.push(Event::Map {
                            device,
                            range,
                            permission,
                            phys,
                            kind,
                            extent,
                        });
                    }
                }
            }
        }
        for direction in [None, Some(Direction::Read), Some(Direction::Write)] {
            events.push(Event::Access {
                device,
                page: first,
                direction,
            });
        }
        let mut text = format!("{HEADER}\n");
        for &event in &events {
            let line = Line {
                device: "00:04.0",
                event,
            };
            text += &format!("{line}\n");
        }
        let trace = Trace::read("written", text.as_bytes(), Limits::default()).unwrap();
        assert_eq!(trace.events(), events);
        assert_eq!(trace.device_name(device), "00:04.0");
    }
}
