// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What to type next, and what a measurement here has to know.

use super::Doctor;
use super::device::Device;
use super::machine::Tracing;
use super::mode::Mode;
use serde::Serialize;

/// A command, and what it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Step {
    pub command: String,
    /// Whether it needs root.
    pub root: bool,
    pub why: String,
}

impl Step {
    fn new(command: impl Into<String>, root: bool, why: impl Into<String>) -> Self {
        Step {
            command: command.into(),
            root,
            why: why.into(),
        }
    }
}

/// Whether the kernel has `dma:*` events: seen, else by its version; `None` if neither says it.
pub(super) fn has_dma_events(doctor: &Doctor) -> Option<bool> {
    match doctor.events.dma {
        Some(events) => Some(events > 0),
        None => doctor.kernel.since(6, 12),
    }
}

/// The network cards and disks.
fn fast(doctor: &Doctor) -> impl Iterator<Item = &Device> {
    doctor.devices.iter().filter(|device| device.is_fast())
}

/// Whether nothing is mapped for any network card or disk.
fn maps_nothing(doctor: &Doctor) -> bool {
    fast(doctor).next().is_some() && fast(doctor).all(Device::is_unmapped)
}

/// Whether the IOMMU translates for a device, so that `iommu:*` events occur.
fn translates(doctor: &Doctor) -> bool {
    let mut devices = doctor.devices.iter();
    devices.any(|device| device.mode.may_translate() && !device.is_unmapped())
}

/// What to type next: at most four commands.
pub(super) fn next(doctor: &Doctor) -> Vec<Step> {
    let mut steps = Vec::new();
    let has_dma = has_dma_events(doctor);
    if maps_nothing(doctor) || (has_dma == Some(false) && !translates(doctor)) {
        let why = "the bundled traces, as here nothing can be recorded";
        return vec![Step::new("ioatlas report", false, why)];
    }
    if doctor.events.access == Tracing::NotMounted {
        steps.push(Step::new(
            "mount -t tracefs nodev /sys/kernel/tracing",
            true,
            "the kernel's trace events",
        ));
    }
    match has_dma {
        Some(true) | None => {
            steps.push(Step::new(
                "ioatlas capture --seconds 5 -o my.trace.zst",
                true,
                "every DMA mapping of 5 seconds, under your load",
            ));
            steps.push(Step::new(
                "ioatlas report my.trace.zst",
                false,
                purpose(doctor),
            ));
        }
        Some(false) => {
            steps.push(Step::new(
                "perf record -a -e 'iommu:map,iommu:unmap' -o iommu.data sleep 5",
                true,
                "mappings of 5 seconds under your load, without names of devices",
            ));
            steps.push(Step::new(
                "perf script -i iommu.data >iommu.txt",
                true,
                "the same as text",
            ));
            steps.push(Step::new(
                "ioatlas report iommu.txt",
                false,
                purpose(doctor),
            ));
        }
    }
    steps.extend(relax(doctor));
    steps.truncate(4);
    steps
}

/// What the report on a trace of this machine is for.
fn purpose(doctor: &Doctor) -> &'static str {
    let has = |mode| {
        doctor
            .devices
            .iter()
            .any(|device| device.mode == mode && device.is_fast())
    };
    match () {
        () if has(Mode::Strict) => "what strict costs here, and what lazy would save",
        () if has(Mode::Lazy) => "what lazy costs here, and what strict would",
        () => "what strict and lazy would cost here",
    }
}

/// The one change of mode that needs neither a reboot nor the driver unbound: strict to lazy, since
/// Linux 5.15, unless a unit forbids it.
fn relax(doctor: &Doctor) -> Option<Step> {
    let forbidden = doctor
        .units
        .iter()
        .any(|unit| unit.caching_mode == Some(true));
    if forbidden || doctor.kernel.since(5, 15) != Some(true) {
        return None;
    }
    let mut strict = fast(doctor).filter(|device| device.mode == Mode::Strict);
    let device = strict.find(|device| !device.untrusted && !device.is_unmapped())?;
    let group = device.group?;
    Some(Step::new(
        format!("echo DMA-FQ >/sys/kernel/iommu_groups/{group}/type"),
        true,
        format!(
            "to compare: {} becomes lazy, so less protected",
            device.name
        ),
    ))
}

/// What a measurement here has to know.
pub(super) fn remarks(doctor: &Doctor) -> Vec<String> {
    let mut remarks = Vec::new();
    if has_dma_events(doctor) == Some(false) {
        let translates = doctor
            .devices
            .iter()
            .any(|device| device.mode.may_translate());
        remarks.push(match translates {
            true => "dma:* events came with Linux 6.12. Here iommu:* events have to do: addresses \
                     without devices, and only of devices whose addresses are translated"
                .into(),
            false => "dma:* events came with Linux 6.12, and iommu:* events occur only where \
                      addresses are translated: here nothing can be recorded"
                .into(),
        });
    }
    if maps_nothing(doctor) {
        remarks.push(
            "no network card or disk here is mapped for, so there is nothing to record, whatever \
             the load"
                .into(),
        );
    }
    if doctor.command_line.bounces() {
        remarks.push("swiotlb=force on the command line: every map is copied".into());
    }
    let has = |option| {
        doctor
            .config
            .as_ref()
            .is_some_and(|config| config.has(option))
    };
    if has("CONFIG_DMA_API_DEBUG") {
        remarks.push(
            "CONFIG_DMA_API_DEBUG is on: unless dma_debug=off, the kernel checks every map, and \
             maps cost more than elsewhere"
                .into(),
        );
    }
    if has("CONFIG_PAGE_POOL_STATS") {
        remarks.push(
            "CONFIG_PAGE_POOL_STATS is on: ethtool -S of many network cards says how many pages \
             are recycled, that is stay mapped"
                .into(),
        );
    }
    remarks
}
