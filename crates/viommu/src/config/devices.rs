// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Devices with ATS: how large their TLBs are, and how they answer.

use super::MAX_CACHE_ENTRIES;
use ioatlas_dma::units::SourceId;

/// What a device does with an invalidation of its TLB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It removes what is named, and answers when its accesses that used it have ended.
    WhenDrained,
    /// Nothing: the unit's time runs out (ITE).
    Never,
}

/// When a device asks again for what was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refetch {
    /// When an access needs it.
    OnDemand,
    /// Right after the invalidation, by an access to each page removed.
    AtOnce,
}

/// A device with ATS.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtsDevice {
    pub source: SourceId,
    /// Entries of its TLB, a page each; fully associative, least recently used. At least 1.
    pub entries: usize,
    /// What it does with invalidations.
    pub answer: Answer,
    /// When it asks again.
    pub refetch: Refetch,
}

/// Whether a device uses ATS: the enable bit of its ATS capability, which is the host's to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ats {
    /// All of its accesses are untranslated.
    Off,
    /// It asks for translations and keeps them.
    On,
}

/// Why the devices of a configuration cannot be.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeviceError {
    /// Two have one source id.
    #[error("{0} is there twice")]
    Twice(SourceId),
    /// A TLB without entries, or of too many.
    #[error("{source_id}: a TLB of {entries} entries is not within 1 to {MAX_CACHE_ENTRIES}")]
    Entries { source_id: SourceId, entries: usize },
}

/// Refuses a device that is there twice, and a TLB of no or too many entries.
pub(super) fn check(devices: &[AtsDevice]) -> Result<(), DeviceError> {
    for (i, device) in devices.iter().enumerate() {
        let (source_id, entries) = (device.source, device.entries);
        if devices[..i].iter().any(|other| other.source == source_id) {
            return Err(DeviceError::Twice(source_id));
        }
        if !(1..=MAX_CACHE_ENTRIES).contains(&entries) {
            return Err(DeviceError::Entries { source_id, entries });
        }
    }
    Ok(())
}
