// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The IOMMU units that Linux drives, or why there are none.

use super::machine::{Config, Cpu};
use super::mode::CommandLine;
use super::tree::{Folder, Tree};
use ioatlas_vtd::layout::Capabilities;
use serde::{Serialize, Serializer};

/// Tables of the firmware that announce IOMMUs. Arm machines have IORT without any, too.
const TABLES: [&str; 5] = ["DMAR", "IVRS", "IORT", "VIOT", "RIMT"];

/// AMD's capability header, bit 26, NPCACHE: entries that are not present may be cached.
const NOT_PRESENT_CACHED: u64 = 1 << 26;

/// One unit. What its kind does not tell is `None`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Unit {
    pub name: String,
    pub kind: Kind,
    pub version: Option<String>,
    pub address: Option<String>,
    pub cap: Option<String>,
    pub ecap: Option<String>,
    pub features: Option<String>,
    pub domains: Option<u64>,
    pub iova_bits: Option<u32>,
    pub largest_leaf: Option<&'static str>,
    /// Whether entries that are not present may be cached, as units of virtual machines do: Linux
    /// is strict then.
    pub caching_mode: Option<bool>,
}

/// Which driver made the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    VtD,
    AmdVi,
    SmmuV3,
    Smmu,
    VirtioIommu,
    RiscV,
    S390,
    Unknown,
}

/// Its name; what is not known is null.
impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Kind::Unknown => serializer.serialize_none(),
            kind => serializer.serialize_str(kind.name()),
        }
    }
}

impl Kind {
    /// By the names that Linux's drivers give; virtio's gives the name of the virtio device's
    /// parent.
    fn of(name: &str, tree: &Tree) -> Self {
        let by_prefix = [
            ("dmar", Kind::VtD),
            ("ivhd", Kind::AmdVi),
            ("smmu3", Kind::SmmuV3),
            ("smmu", Kind::Smmu),
            ("riscv-iommu", Kind::RiscV),
            ("s390-iommu", Kind::S390),
            ("virtio", Kind::VirtioIommu),
        ];
        for (prefix, kind) in by_prefix {
            if name.starts_with(prefix) {
                return kind;
            }
        }
        let id = |file: &str| {
            let device = tree.folder("sys/bus/pci/devices")?.folder(name)?;
            device.text(file)
        };
        let is_virtio = name.contains("virtio")
            || (id("vendor").as_deref() == Some("0x1af4")
                && id("device").as_deref() == Some("0x1057"));
        match is_virtio {
            true => Kind::VirtioIommu,
            false => Kind::Unknown,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::VtD => "VT-d",
            Kind::AmdVi => "AMD-Vi",
            Kind::SmmuV3 => "SMMUv3",
            Kind::Smmu => "SMMU",
            Kind::VirtioIommu => "virtio-iommu",
            Kind::RiscV => "RISC-V IOMMU",
            Kind::S390 => "s390 IOMMU",
            Kind::Unknown => "IOMMU",
        }
    }
}

/// The units, by name.
pub(super) fn units(tree: &Tree) -> Vec<Unit> {
    let Some(folder) = tree.folder("sys/class/iommu") else {
        return Vec::new();
    };
    let names = folder.names().into_iter();
    names.map(|name| Unit::read(tree, &folder, name)).collect()
}

impl Unit {
    fn read(tree: &Tree, folder: &Folder<'_>, name: String) -> Self {
        let here = folder.folder(&name);
        let text = |path: &str| {
            let (sub, file) = path.split_once('/')?;
            here.as_ref()?.folder(sub)?.text(file)
        };
        let hex = |text: &Option<String>| u64::from_str_radix(text.as_deref()?, 16).ok();
        let kind = Kind::of(&name, tree);
        let mut unit = Unit {
            kind,
            version: text("intel-iommu/version").map(|version| version.replace(':', ".")),
            address: text("intel-iommu/address"),
            cap: text("intel-iommu/cap").or_else(|| text("amd-iommu/cap")),
            ecap: text("intel-iommu/ecap"),
            features: text("amd-iommu/features"),
            domains: text("intel-iommu/domains_supported").and_then(|text| text.parse().ok()),
            iova_bits: None,
            largest_leaf: None,
            caching_mode: None,
            name,
        };
        let cap = hex(&unit.cap);
        match kind {
            Kind::VtD => {
                if let (Some(cap), Some(ecap)) = (cap, hex(&unit.ecap)) {
                    let able = Capabilities::new(cap, ecap);
                    unit.iova_bits = Some(able.iova_bits());
                    unit.largest_leaf = Some(match able.largest_leaf() {
                        3 => "1 GiB",
                        2 => "2 MiB",
                        _ => "4 KiB",
                    });
                    unit.caching_mode = Some(able.caching_mode());
                }
            }
            Kind::AmdVi => unit.caching_mode = cap.map(|cap| cap & NOT_PRESENT_CACHED != 0),
            _ => {}
        }
        unit
    }

    /// What it is and can do, in words, without its name.
    pub fn words(&self) -> String {
        let mut text = self.kind.name().to_owned();
        if let Some(version) = &self.version {
            text += &format!(" {version}");
        }
        let bits = self.iova_bits.map(|bits| format!("IOVAs of {bits} bits"));
        let leaf = self.largest_leaf.map(|leaf| format!("leaves up to {leaf}"));
        let domains = self.domains.map(ioatlas_present::grouped);
        let domains = domains.map(|domains| format!("{domains} domains"));
        let virtual_unit = self.caching_mode.filter(|caching| *caching);
        let caching = virtual_unit.map(|_| "caching mode, so always strict".into());
        for part in [bits, leaf, domains, caching].into_iter().flatten() {
            text += ", ";
            text += &part;
        }
        text
    }
}

/// Why Linux uses no IOMMU, as far as can be told.
pub(super) fn absence(
    tree: &Tree,
    cpu: &Cpu,
    line: &CommandLine,
    config: Option<&Config>,
) -> String {
    if let Some(off) = &line.off {
        return format!("switched off by {off} on the command line");
    }
    let tables = tree.folder("sys/firmware/acpi/tables");
    let tables = tables.map(|folder| folder.names()).unwrap_or_default();
    let found = TABLES
        .into_iter()
        .find(|table| tables.iter().any(|name| name == table));
    let driver = match found {
        Some("DMAR") => Some("CONFIG_INTEL_IOMMU"),
        Some("IVRS") => Some("CONFIG_AMD_IOMMU"),
        _ => None,
    };
    let left_out = driver.filter(|option| config.is_some_and(|config| !config.has(option)));
    if let (Some(table), Some(option)) = (found, left_out) {
        return format!(
            "the firmware announces one (table {table}), but this kernel was built without its \
             driver ({option})"
        );
    }
    match found {
        Some("DMAR") if line.on.is_some() => {
            "the firmware announces VT-d (table DMAR) and the command line asks for it, but Linux \
             could not use it: its log says why (dmesg | grep -i -e DMAR -e IOMMU)"
                .into()
        }
        Some("DMAR") => {
            let not_default = config.is_some_and(|c| !c.has("CONFIG_INTEL_IOMMU_DEFAULT_ON"));
            let why = match not_default {
                true => "CONFIG_INTEL_IOMMU_DEFAULT_ON is off in this kernel",
                false => "many kernels leave VT-d off unless asked",
            };
            format!(
                "the firmware announces VT-d (table DMAR), but {why}: boot with intel_iommu=on to \
                 use it"
            )
        }
        Some("IORT") => "the firmware's table IORT may announce SMMUs, but Linux uses none".into(),
        Some(table) => format!(
            "the firmware announces one (table {table}), but Linux uses none: its log says why \
             (dmesg | grep -i IOMMU)"
        ),
        None if cpu.hypervisor == Some(true) => {
            "this is a virtual machine that was given none".into()
        }
        None if !tables.is_empty() => {
            "the firmware announces none; its setup may have a switch: VT-d, AMD-Vi, IOMMU or SMMU"
                .into()
        }
        None => "none announced by the firmware, as far as can be seen".into(),
    }
}
