// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What can go wrong with one unit of several, or with a device between them.

use super::Requester;
use crate::driver::{BringUpError, DeviceTlbError};
use core::fmt;
use ioatlas_dma::{translator::AttachError, units::PhysAddr};

/// A unit that does not work.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unit at {registers}: {cause}; its devices {devices}")]
pub struct Failure {
    pub registers: PhysAddr,
    pub cause: FailureCause,
    /// What that means for its devices.
    pub devices: DeviceIs,
}

/// Why a unit does not work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FailureCause {
    /// The host gave no access to its registers.
    #[error("its registers cannot be reached")]
    NoRegisters,
    /// It cannot do what is needed, or did not.
    #[error(transparent)]
    BringUp(#[from] BringUpError),
}

/// What the devices of a unit that failed can reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceIs {
    /// All of memory: the unit does not translate.
    Free,
    /// What it was before: the unit translates by tables that were there before us.
    AsBefore,
    /// It is not known: the unit did not answer, or failed while it went from one table to another.
    Unknown,
}

impl fmt::Display for DeviceIs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceIs::Free => "reach all of memory",
            DeviceIs::AsBefore => "reach what they reached before",
            DeviceIs::Unknown => "may reach anything",
        })
    }
}

/// Why a device has no unit.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// None lists it, and none covers the rest of its segment: nothing keeps it from any memory.
    #[error("no remapping unit covers {requester}: it reaches all of memory")]
    NoUnit { requester: Requester },
    /// Its unit does not work.
    #[error("{requester} has no working remapping unit: {failure}")]
    Failed {
        requester: Requester,
        failure: Failure,
    },
}

/// Why a device cannot be attached to a domain of some unit.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnitAttachError {
    /// It has no unit.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The domain is one of another unit.
    #[error("{requester} is translated by another unit than the domain's")]
    OtherUnit { requester: Requester },
    /// The unit did not attach it.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// Why a device may keep no translations.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AtsError {
    /// It has no unit.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// Firmware does not say that the root port above it may (VT-d 4.1 §8.5).
    #[error("no ATSR covers the root port above {requester}")]
    Port { requester: Requester },
    /// Its unit serves none.
    #[error(transparent)]
    Unit(#[from] DeviceTlbError),
}
