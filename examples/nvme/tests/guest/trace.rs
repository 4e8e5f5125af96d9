// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What QEMU saw, between the numbers that the driver told its controller.

use ioatlas_guest::{GuestError, Log};

/// What is written down.
pub const EVENTS: [&str; 7] = [
    "vtd_inv_desc_iotlb_pages",
    "vtd_dmar_fault",
    "virtio_iommu_map",
    "virtio_iommu_unmap",
    "virtio_iommu_report_fault",
    "pci_nvme_read",
    "pci_nvme_getfeat",
];

/// One line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The guest told the unit that it had mapped or unmapped something: an invalidation, or a
    /// request of virtio-iommu's.
    Invalidation,
    /// A device was blocked.
    Fault { source: u16, page: u64 },
    /// A read command.
    Read,
    /// A number that the driver told.
    Note(u32),
}

/// All of them, in order.
#[derive(Clone, Default, Debug)]
pub struct Trace(pub Vec<Event>);

impl Log<GuestError> for Trace {
    type Result = Trace;
    fn line(&mut self, line: &[u8]) -> Result<(), GuestError> {
        self.0.extend(event(&String::from_utf8_lossy(line)));
        Ok(())
    }
    fn finish(self) -> Result<Trace, GuestError> {
        Ok(self)
    }
}

fn event(line: &str) -> Option<Event> {
    // some builds put process and time before it
    let begins = EVENTS.iter().filter_map(|name| line.find(name)).min()?;
    // virtio-iommu's have `field=value`
    let mut words = line[begins..]
        .split([' ', '=', '\n', '\r'])
        .filter(|word| !word.is_empty());
    let name = words.next()?;
    let words: Vec<&str> = words.collect();
    let number = |field: &str| {
        let at = words.iter().position(|word| *word == field)?;
        let word = words.get(at + 1)?.trim_end_matches(',');
        match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => word.parse().ok(),
        }
    };
    Some(match name {
        "vtd_inv_desc_iotlb_pages" => Event::Invalidation,
        "vtd_dmar_fault" => Event::Fault {
            source: number("sid")? as u16,
            page: number("addr")? >> 12,
        },
        "virtio_iommu_map" | "virtio_iommu_unmap" => Event::Invalidation,
        "virtio_iommu_report_fault" => Event::Fault {
            source: number("endpoint")? as u16,
            page: number("address")? >> 12,
        },
        "pci_nvme_read" => Event::Read,
        "pci_nvme_getfeat" => Event::Note(number("cdw11")? as u32),
        _ => return None,
    })
}

impl Trace {
    /// What came between two numbers; reports follow each other, and each counts anew, so `nth`
    /// says of which report.
    pub fn between(&self, nth: usize, notes: [u32; 2]) -> &[Event] {
        // a report begins with a number not above the one before it
        let mut report = 0;
        let mut last = 0;
        let mut from = None;
        for (at, event) in self.0.iter().enumerate() {
            let Event::Note(note) = event else { continue };
            if *note <= last {
                report += 1;
            }
            last = *note;
            if report == nth && *note == notes[0] {
                from = Some(at);
            }
            if let (Some(from), true) = (from, report == nth && *note == notes[1]) {
                return &self.0[from + 1..at];
            }
        }
        &[]
    }
}

pub fn count(events: &[Event], which: impl Fn(&Event) -> bool) -> u64 {
    events.iter().filter(|event| which(event)).count() as u64
}

pub fn self_test() -> Result<(), libtest_mimic::Failed> {
    let lines = [
        "pci_nvme_getfeat cid 3 nsid 0x0 fid 0x7 sel 0x0 cdw11 0x1",
        "12@1700000000.1:vtd_dmar_fault sid 0x20 fault 5 addr 0x7fffff8000 write 1",
        "pci_nvme_getfeat cid 3 nsid 0x0 fid 0x7 sel 0x0 cdw11 0x2",
        "pci_nvme_getfeat cid 3 nsid 0x0 fid 0x7 sel 0x0 cdw11 0x1",
        "vtd_inv_desc_iotlb_pages iotlb invalidate domain 0x1 addr 0x1000 mask 0x0",
        "qemu-system-x86_64: something else",
        "virtio_iommu_unmap_done domain=1 virt_start=0x1000 virt_end=0x1fff",
        "virtio_iommu_map domain=1 virt_start=0x1000 virt_end=0x1fff phys_start=0x5000 flags=1",
        "virtio_iommu_report_fault FAULT reason=2 flags=2 endpoint=32 address =0x7fffff8000",
        "pci_nvme_getfeat cid 3 nsid 0x0 fid 0x7 sel 0x0 cdw11 0x2",
    ];
    let mut trace = Trace::default();
    for line in lines {
        trace.line(line.as_bytes())?;
    }
    let fault = Event::Fault {
        source: 0x20,
        page: 0x7fffff8,
    };
    let seen = [
        trace.between(0, [1, 2]),
        trace.between(1, [1, 2]),
        trace.between(2, [1, 2]),
    ];
    let others = [Event::Invalidation, Event::Invalidation, fault];
    match seen == [&[fault][..], &others, &[]] {
        true => Ok(()),
        false => Err(format!("{seen:?}").into()),
    }
}
