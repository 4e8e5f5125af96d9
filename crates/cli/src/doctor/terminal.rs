// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What was found, as text.

use super::Doctor;
use super::device::Device;
use super::machine::{HugePages, Tracing};
use super::mode::{Mode, Source};
use ioatlas_present::{columns, grouped, printable, wrapped};
use std::collections::{BTreeMap, BTreeSet};

/// Devices without a driver that are listed unasked.
const WITHOUT_DRIVER: usize = 16;
/// Troubles that are shown.
const TROUBLES: usize = 5;
/// The mark of a virtio device that is given physical addresses.
const UNMAPPED: &str = "not mapped";
/// Columns that a paragraph may have.
const WIDTH: usize = 100;

/// The whole answer; `all` lists every device.
pub(super) fn text(doctor: &Doctor, all: bool) -> String {
    let mut text = head(doctor);
    text += &devices(doctor, all);
    text += &legend(doctor);
    text += &paragraph("huge pages", &huge_pages(&doctor.huge_pages));
    text += &paragraph("events", &events(doctor));
    for remark in &doctor.remarks {
        text += &paragraph("note", remark);
    }
    text += &troubles(doctor);
    text + &next(doctor)
}

/// Words after a name, wrapped and indented.
fn paragraph(name: &str, words: &str) -> String {
    const INDENT: usize = 15;
    let text = format!("  {name:<13}{}", wrapped(words, WIDTH, INDENT, INDENT));
    text.trim_end().to_owned() + "\n"
}

fn head(doctor: &Doctor) -> String {
    let release = doctor.kernel.release.as_deref();
    let release = release.map_or("(unknown release)".into(), |name| printable(name, 60));
    let vendor = doctor.cpu.vendor.as_deref();
    let vendor = vendor.map_or("unknown".into(), |name| printable(name, 40));
    let guest = match doctor.cpu.hypervisor {
        Some(true) => ", in a virtual machine",
        _ => "",
    };
    let in_use = match (doctor.uses_iommu(), doctor.units.len()) {
        (false, _) => "no IOMMU is in use".into(),
        (true, 0) => "no IOMMU unit is shown, but groups are".into(),
        (true, 1) => "1 IOMMU unit".into(),
        (true, count) => format!("{count} IOMMU units"),
    };
    let mut text = format!("ioatlas doctor: Linux {release}, {vendor} CPU{guest}: {in_use}\n");
    if let Some(why) = &doctor.no_iommu_because {
        text += &paragraph("probably", why);
    }
    let mut alike: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for unit in &doctor.units {
        alike.entry(unit.words()).or_default().push(&unit.name);
    }
    for (words, names) in &alike {
        let words = printable(words, 160);
        text += &paragraph("unit", &format!("{}: {words}", few(names, 4)));
    }
    if let Some(options) = &doctor.command_line.options {
        let options = match options.is_empty() {
            true => "says nothing of IOMMUs".into(),
            false => printable(&options.join(" "), 300),
        };
        text += &paragraph("command line", &options);
    }
    if doctor.uses_iommu() {
        text += &paragraph("default", &default(doctor));
        text += &paragraph("groups", &groups(doctor));
    }
    text
}

/// The first of some names.
fn few(names: &[&str], most: usize) -> String {
    let shown = names.iter().take(most).map(|name| printable(name, 40));
    let shown = shown.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(most) {
        0 => shown,
        left => format!("{shown} and {left} more"),
    }
}

fn default(doctor: &Doctor) -> String {
    let default = &doctor.default_mode;
    let by = default.by.join(" ");
    let by = printable(&by, 120);
    let line = match &doctor.command_line.options {
        Some(_) => "the command line does not say it",
        None => "the command line cannot be read",
    };
    let config = match &doctor.config {
        Some(_) => "the kernel's configuration does not either",
        None => "the kernel's configuration cannot be read",
    };
    let Some(mode) = default.mode else {
        return format!("unknown: {line}, {config}, and the groups do not tell");
    };
    let mut text = match default.source {
        Some(Source::CommandLine) => format!("{}, by the command line: {by}", mode.name()),
        Some(Source::KernelConfig) => {
            format!("{}, by the kernel's configuration: {by}", mode.name())
        }
        Some(Source::Groups) | None => format!(
            "{}, as every group is; what chose it is unknown: {line}, and {config}",
            mode.name()
        ),
    };
    let caching = doctor
        .units
        .iter()
        .any(|unit| unit.caching_mode == Some(true));
    let strict = doctor.groups.iter().any(|group| group.mode == Mode::Strict);
    if mode == Mode::Lazy && caching && strict {
        text += "; but the unit is one of a virtual machine, for which Linux is always strict";
    }
    text
}

/// How many groups have which mode.
fn groups(doctor: &Doctor) -> String {
    if doctor.groups.is_empty() {
        return "none".into();
    }
    let mut by_mode: BTreeMap<Mode, u64> = BTreeMap::new();
    for group in &doctor.groups {
        *by_mode.entry(group.mode).or_default() += 1;
    }
    let count = grouped(doctor.groups.len() as u64);
    let modes = by_mode.iter();
    let modes = modes.map(|(mode, count)| format!("{} {}", grouped(*count), mode.name()));
    format!("{count}: {}", modes.collect::<Vec<_>>().join(", "))
}

fn devices(doctor: &Doctor, all: bool) -> String {
    let (driven, idle): (Vec<&Device>, Vec<&Device>) = doctor
        .devices
        .iter()
        .filter(|device| device.driver.is_some() || device.group.is_some())
        .partition(|device| device.driver.is_some());
    let folded = !all && idle.len() > WITHOUT_DRIVER;
    let mut shown = driven;
    if !folded {
        shown.extend(&idle);
        shown.sort_by(|a, b| (!a.pci, &a.name).cmp(&(!b.pci, &b.name)));
    }
    let nodes: BTreeSet<_> = shown.iter().filter_map(|device| device.numa_node).collect();
    let rows: Vec<Vec<String>> = shown
        .iter()
        .map(|device| row(device, nodes.len() > 1))
        .collect();
    let mut text = String::from("\n");
    for line in columns("l", 2, &rows) {
        text += &format!("{line}\n");
    }
    if shown.is_empty() {
        text += "no device has a driver or is in a group\n";
    }
    if folded {
        let modes: BTreeSet<Mode> = idle.iter().map(|device| device.mode).collect();
        let modes: Vec<&str> = modes.into_iter().map(Mode::name).collect();
        let count = grouped(idle.len() as u64);
        text += &format!(
            "and {count} without a driver: {} (--all)\n",
            modes.join(", ")
        );
    }
    text + "\n"
}

fn row(device: &Device, with_node: bool) -> Vec<String> {
    let kind = device.group_type.as_deref().map(|kind| printable(kind, 20));
    let mode = match (device.mode, kind) {
        (Mode::Vfio, Some(kind)) => format!("VFIO (else {kind})"),
        (mode, Some(kind)) => format!("{} ({kind})", mode.name()),
        (mode, None) => mode.name().into(),
    };
    let group = device.group.map(|group| format!("group {group}"));
    let unit = device.unit.as_deref().map(|unit| printable(unit, 40));
    let place: Vec<String> = group.into_iter().chain(unit).collect();
    let mut marks = Vec::new();
    if let Some(virtio) = &device.virtio {
        let driver = virtio.driver.as_deref();
        marks.extend(driver.map(|driver| printable(driver, 24)));
    }
    if device.is_unmapped() {
        marks.push(UNMAPPED.into());
    }
    for (what, names) in [
        ("net", &device.net),
        ("disk", &device.block),
        ("", &device.nvme),
    ] {
        if !names.is_empty() {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            marks.push(format!("{what} {}", few(&names, 3)).trim().to_owned());
        }
    }
    if let Some(node) = device.numa_node.filter(|_| with_node) {
        marks.push(format!("node {node}"));
    }
    match device.shares_with {
        0 => {}
        1 => marks.push("shares its group with 1 other".into()),
        others => marks.push(format!("shares its group with {others} others")),
    }
    if device.vfio && device.mode == Mode::NoIommu {
        marks.push("under VFIO without an IOMMU".into());
    }
    if device.removable {
        marks.push("removable, so probably untrusted".into());
    }
    if let Some(bits) = device
        .dma_mask_bits
        .filter(|bits| *bits <= 32 && device.is_fast())
    {
        marks.push(format!("reaches {bits} bits only"));
    }
    let driver = device.driver.as_deref();
    vec![
        printable(&device.name, 40),
        driver.map_or("-".into(), |driver| printable(driver, 24)),
        mode,
        place.join(", "),
        marks.join(", "),
    ]
}

/// What the modes that occur mean.
fn legend(doctor: &Doctor) -> String {
    let modes: BTreeSet<Mode> = doctor
        .devices
        .iter()
        .filter(|device| device.driver.is_some() || device.group.is_some())
        .map(|device| device.mode)
        .collect();
    let lines = modes.into_iter();
    let mut text: String = lines
        .map(|mode| paragraph(mode.name(), mode.legend()))
        .collect();
    if doctor.devices.iter().any(Device::is_unmapped) {
        let words = "virtio without the feature ACCESS_PLATFORM: the device is given physical \
                     addresses, past the DMA API and any IOMMU, and dma:* events show nothing of it";
        text += &paragraph(UNMAPPED, words);
    }
    text
}

fn huge_pages(pages: &HugePages) -> String {
    let size = |kib: u64| match kib {
        kib if kib >= 1 << 20 && kib.is_multiple_of(1 << 20) => format!("{} GiB", kib >> 20),
        kib if kib >= 1 << 10 && kib.is_multiple_of(1 << 10) => format!("{} MiB", kib >> 10),
        kib => format!("{kib} KiB"),
    };
    let mut parts: Vec<String> = pages
        .reserved
        .iter()
        .take(8)
        .map(|of| {
            let pages = of.pages.map_or("?".into(), grouped);
            format!("{pages} of {}", size(of.page_kib))
        })
        .collect();
    if parts.is_empty() {
        parts.push("unknown".into());
    }
    let transparent = pages.transparent.as_deref();
    let transparent = transparent.map_or("unknown".into(), |when| printable(when, 20));
    format!("reserved: {}; transparent: {transparent}", parts.join(", "))
}

fn events(doctor: &Doctor) -> String {
    let counted = |name: &str, count: Option<usize>| match count {
        None | Some(0) => format!("no {name}:*"),
        Some(count) => format!("{count} {name}:*"),
    };
    let by_version = match doctor.kernel.since(6, 12) {
        Some(true) => "Linux 6.12 and later have dma:*",
        Some(false) => "dma:* came with Linux 6.12, and some vendors' older kernels have them",
        None => "dma:* exist since Linux 6.12",
    };
    match doctor.events.access {
        Tracing::Readable => format!(
            "{}, {}, which this user can read",
            counted("dma", doctor.events.dma),
            counted("iommu", doctor.events.iommu)
        ),
        Tracing::Denied => format!("{by_version}; only root may look, as usual"),
        Tracing::NotMounted => format!("{by_version}; the file system of events is not mounted"),
        Tracing::Absent => format!("{by_version}; this kernel shows no tracing here"),
    }
}

fn troubles(doctor: &Doctor) -> String {
    let troubles = &doctor.unread;
    let mut text = String::new();
    for trouble in troubles.first.iter().take(TROUBLES) {
        let words = format!(
            "{}: {}",
            printable(&trouble.path, 100),
            printable(&trouble.reason, 60)
        );
        text += &paragraph("not read", &words);
    }
    let left = troubles.count.saturating_sub(TROUBLES as u64);
    if left > 0 {
        text += &paragraph("", &format!("and {} more", grouped(left)));
    }
    text
}

/// Commands to be copied, each below what it is for.
fn next(doctor: &Doctor) -> String {
    let mut text = String::from("\nNext:\n");
    for step in &doctor.next {
        let root = if step.root { "as root: " } else { "" };
        text += &format!("  # {root}{}\n", printable(&step.why, 80));
        text += &format!("  {}\n", printable(&step.command, 100));
    }
    text
}
