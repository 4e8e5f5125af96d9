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

/// Whether the kernel has `dma:*` events: seen, else by its version; `None` if neither says it. An
/// older version does not say that there are none: vendors put them into older kernels.
fn has_dma_events(doctor: &Doctor) -> Option<bool> {
    match doctor.events.dma {
        Some(events) => Some(events > 0),
        None => doctor.kernel.since(6, 12).filter(|since| *since),
    }
}

/// The network cards and disks.
fn fast(doctor: &Doctor) -> impl Iterator<Item = &Device> {
    doctor.devices.iter().filter(|device| device.is_fast())
}

/// Whether nothing is mapped for any device: each that has a driver is virtio's, and given physical
/// addresses.
fn maps_nothing(doctor: &Doctor) -> bool {
    let driven = || doctor.devices.iter().filter(|of| of.driver.is_some());
    driven().next().is_some() && driven().all(Device::is_unmapped)
}

/// Whether the IOMMU may translate for a device, so that `iommu:*` events occur.
fn translates(doctor: &Doctor) -> bool {
    let mut devices = doctor.devices.iter();
    devices.any(|device| device.mode.may_translate() && !device.is_unmapped())
}

/// Whether it is seen that nothing can be recorded.
fn records_nothing(doctor: &Doctor) -> bool {
    let no_iommu = doctor.events.iommu == Some(0) || !translates(doctor);
    maps_nothing(doctor) || (has_dma_events(doctor) == Some(false) && no_iommu)
}

/// What to type next: at most four commands.
pub(super) fn next(doctor: &Doctor) -> Vec<Step> {
    let mut steps = Vec::new();
    if records_nothing(doctor) {
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
    let what = match has_dma_events(doctor) {
        Some(true) => "the DMA mappings of 5 seconds, under your load",
        Some(false) => "mappings of 5 seconds under your load, without names of devices",
        None => "mappings of 5 seconds, under your load",
    };
    steps.push(Step::new(
        "ioatlas capture --seconds 5 -o my.trace.zst",
        true,
        what,
    ));
    steps.push(Step::new(
        "ioatlas report my.trace.zst",
        false,
        purpose(doctor),
    ));
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
/// Linux 5.15, unless a unit forbids it. It changes a whole group; Linux before 6.4 refuses it for
/// one of several devices, so only a device that is alone is named.
fn relax(doctor: &Doctor) -> Option<Step> {
    let forbidden = doctor
        .units
        .iter()
        .any(|unit| unit.caching_mode == Some(true));
    if forbidden || doctor.kernel.since(5, 15) != Some(true) {
        return None;
    }
    let mut strict = fast(doctor).filter(|device| device.mode == Mode::Strict);
    let device = strict
        .find(|device| !device.removable && !device.is_unmapped() && device.shares_with == 0)?;
    let group = device.group?;
    Some(Step::new(
        format!("echo DMA-FQ >/sys/kernel/iommu_groups/{group}/type"),
        true,
        format!(
            "to compare: group {group} ({} alone) becomes lazy, so less protected",
            device.name
        ),
    ))
}

/// What a measurement here has to know.
pub(super) fn remarks(doctor: &Doctor) -> Vec<String> {
    let mut remarks = Vec::new();
    let old = doctor.kernel.since(6, 12) == Some(false);
    match has_dma_events(doctor) {
        Some(false) if doctor.events.iommu == Some(0) => remarks.push(
            "the kernel has neither dma:* events (Linux 6.12 and later) nor iommu:*: here nothing \
             can be recorded"
                .into(),
        ),
        Some(false) if translates(doctor) => remarks.push(
            "dma:* events came with Linux 6.12. Here iommu:* events have to do: addresses without \
             devices, and only of devices whose addresses are translated"
                .into(),
        ),
        Some(false) => remarks.push(
            "dma:* events came with Linux 6.12, and iommu:* events occur only where addresses are \
             translated: here nothing can be recorded"
                .into(),
        ),
        None if old => remarks.push(
            "dma:* events came with Linux 6.12, and some vendors' older kernels have them: root \
             can see it. Without them iommu:* events have to do: addresses without devices, and \
             only of devices whose addresses are translated"
                .into(),
        ),
        _ => {}
    }
    if maps_nothing(doctor) {
        remarks.push(
            "no device here is mapped for: all that have a driver are virtio devices that are \
             given physical addresses, so there is nothing to record, whatever the load"
                .into(),
        );
    }
    let direct = |of: &Device| matches!(of.mode, Mode::Passthrough | Mode::NoIommu);
    let mut driven = doctor.devices.iter().filter(|of| of.driver.is_some());
    if doctor.command_line.bounces() && driven.any(direct) {
        remarks.push(
            "swiotlb=force on the command line: where addresses are not translated, every map is \
             copied"
                .into(),
        );
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
