// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The sample traces, part of the binary so that it works from anywhere.

use crate::error::Error;
use crate::loaded::LoadedTrace;

/// A sample trace and its variant.
#[derive(Debug)]
pub struct Sample {
    name: &'static str,
    bytes: &'static [u8],
    description: &'static str,
}

macro_rules! sample {
    ($name:literal, $description:literal) => {
        Sample {
            name: concat!($name, ".trace.zst"),
            bytes: include_bytes!(concat!("../../../traces/", $name, ".trace.zst")),
            description: $description,
        }
    };
}

/// One trace a device and workload, recorded with the kernel as it is.
pub const BASE: [Sample; 3] = [
    sample!("e1000-stream", "NIC, TCP send"),
    sample!("lsi-bonnie", "SCSI, disk write"),
    sample!("2xe1000-stream", "2 NICs, TCP send"),
];

/// The same workloads with the kernel's IOVA reuse cache switched off.
pub const VARIANTS: [Sample; 3] = [
    sample!("e1000-stream-norcache", "NIC, TCP send, no IOVA reuse"),
    sample!("lsi-bonnie-norcache", "SCSI, disk write, no IOVA reuse"),
    sample!("2xe1000-stream-norcache", "2 NICs, TCP send, no IOVA reuse"),
];

/// Devices that WIOSCA'10 did not have, recorded with the kernel as it is.
pub const MORE: [Sample; 2] = [
    sample!("virtio-net-4q-stream", "NIC of four queues, TCP send"),
    sample!("nvme-fio", "NVMe, random reads and writes"),
];

impl Sample {
    /// Reads the trace out of the program.
    ///
    /// # Errors
    ///
    /// [`Error::Trace`], if the binary was built from a damaged file.
    pub fn load(&self) -> Result<LoadedTrace, Error> {
        LoadedTrace::read(self.name, self.bytes, Some(self.description))
    }
}
