// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Devices and what they did: the traces that the figures are drawn from.

use crate::bundled::{self, BASE, Sample, VARIANTS};
use ioatlas_iotlb::Trace;

/// A device, what it did, and the traces of that.
pub(in crate::papers) struct Workload {
    /// A short name: `e1000`.
    pub name: &'static str,
    /// The paper's words: `E1000, netperf send`.
    pub title: &'static str,
    /// With the kernel as it is.
    pub today: &'static Sample,
    /// With its IOVA reuse cache off, if that was recorded.
    pub reuse_off: Option<&'static Sample>,
}

/// Name of the kernel as it is.
pub(in crate::papers) const TODAY: &str = "today's kernel";
/// Name of the kernel that is as in 2010 in what matters here.
pub(in crate::papers) const REUSE_OFF: &str = "reuse cache off";

pub(in crate::papers) static E1000: Workload = Workload {
    name: "e1000",
    title: "E1000, netperf send",
    today: &BASE[0],
    reuse_off: Some(&VARIANTS[0]),
};
pub(in crate::papers) static LSI: Workload = Workload {
    name: "lsi",
    title: "SCSI, bonnie++ write",
    today: &BASE[1],
    reuse_off: Some(&VARIANTS[1]),
};
pub(in crate::papers) static TWO_E1000: Workload = Workload {
    name: "2xe1000",
    title: "2 x E1000, netperf send",
    today: &BASE[2],
    reuse_off: Some(&VARIANTS[2]),
};

/// The paper's, in the order of its figures 10 to 12.
pub(in crate::papers) static PAPER: [&Workload; 3] = [&E1000, &LSI, &TWO_E1000];
/// Others, that the paper did not have. A line here adds a device to every exhibit that can
/// take one more device.
pub(in crate::papers) static MORE: [&Workload; 2] = [&VIRTIO, &NVME];

/// The paper's workloads, then the others.
pub(in crate::papers) fn all() -> impl Iterator<Item = &'static Workload> {
    PAPER.iter().chain(&MORE).copied()
}

pub(in crate::papers) static VIRTIO: Workload = Workload {
    name: "virtio-net-4q",
    title: "virtio-net, 4 queues, netperf send",
    today: &bundled::MORE[0],
    reuse_off: None,
};
pub(in crate::papers) static NVME: Workload = Workload {
    name: "nvme",
    title: "NVMe, fio",
    today: &bundled::MORE[1],
    reuse_off: None,
};

/// A trace and the kernel that it was recorded with.
pub(in crate::papers) struct Recorded {
    pub kernel: &'static str,
    pub trace: Trace,
}

impl Recorded {
    /// What the kernel adds to names of files.
    pub fn suffix(&self) -> &'static str {
        if self.kernel == TODAY {
            "-today"
        } else {
            "-reuse-off"
        }
    }
}

impl Workload {
    /// Reads its traces, that of today's kernel first.
    ///
    /// # Errors
    /// A sentence: the binary was built from a damaged file.
    pub fn load(&self) -> Result<Vec<Recorded>, String> {
        let mut all = vec![(TODAY, self.today)];
        all.extend(self.reuse_off.map(|sample| (REUSE_OFF, sample)));
        let read = |(kernel, sample): (&'static str, &Sample)| {
            let loaded = sample.load().map_err(|error| error.to_string())?;
            Ok(Recorded {
                kernel,
                trace: loaded.trace,
            })
        };
        all.into_iter().map(read).collect()
    }
}
