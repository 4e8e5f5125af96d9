// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What one line of a trace says.

use crate::units::{Extent, IovaPage, PageRange, PhysPage};
use serde::Serialize;
use std::fmt;

/// Index of a device among the devices of its trace, in order of first
/// appearance; [`crate::Trace::device_name`] gives its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// The index, for use with slices kept one element a device.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a mapping lets the device do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// `r`: the device reads memory.
    Read,
    /// `w`: the device writes memory.
    Write,
    /// `rw`: the device does both.
    ReadWrite,
}

/// What one access did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// `r`: the device read memory.
    Read,
    /// `w`: the device wrote memory.
    Write,
}

/// Which call of the operating system's DMA interface made a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `alloc`: a consistent allocation.
    Alloc,
    /// `page`: a single streaming buffer.
    Page,
    /// `sg`: an element of a streaming scatter-gather list.
    ScatterGather,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Alloc => "alloc",
            Kind::Page => "page",
            Kind::ScatterGather => "sg",
        })
    }
}

/// One event of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // its fields say it
pub enum Event {
    /// `M`: pages become accessible.
    Map {
        /// The device that may access them.
        device: DeviceId,
        range: PageRange,
        /// How they may be accessed.
        permission: Permission,
        /// First physical page, where recorded.
        phys: Option<PhysPage>,
        /// Which interface made the mapping, where recorded.
        kind: Option<Kind>,
        /// Which bytes of the pages it is for, where recorded.
        extent: Option<Extent>,
    },
    /// `U`: pages stop being accessible.
    Unmap { device: DeviceId, range: PageRange },
    /// `A`: the device accesses one page.
    Access {
        device: DeviceId,
        page: IovaPage,
        /// Read or write, where recorded.
        direction: Option<Direction>,
    },
}

impl Event {
    /// The device that the event is about.
    #[must_use]
    pub const fn device(&self) -> DeviceId {
        match *self {
            Event::Map { device, .. }
            | Event::Unmap { device, .. }
            | Event::Access { device, .. } => device,
        }
    }

    /// How many bytes a map is for, where recorded.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        match *self {
            Event::Map { range, extent, .. } => Some(extent?.bytes(range.pages())),
            Event::Unmap { .. } | Event::Access { .. } => None,
        }
    }
}
