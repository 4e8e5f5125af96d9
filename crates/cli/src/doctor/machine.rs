// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The kernel, its configuration, the processor, huge pages and trace events.

use super::tree::{Access, Folder, Tree};
use flate2::read::GzDecoder;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Read as _;

/// Bytes of a kernel's configuration; a distribution's has about 300 KiB.
const CONFIG_BYTES: u64 = 1 << 20;

/// Options of the kernel's configuration that change what the IOMMU costs, or what can be seen.
const OPTIONS: [&str; 12] = [
    "CONFIG_IOMMU_DEFAULT_DMA_STRICT",
    "CONFIG_IOMMU_DEFAULT_DMA_LAZY",
    "CONFIG_IOMMU_DEFAULT_PASSTHROUGH",
    "CONFIG_INTEL_IOMMU",
    "CONFIG_INTEL_IOMMU_DEFAULT_ON",
    "CONFIG_AMD_IOMMU",
    "CONFIG_ARM_SMMU_V3",
    "CONFIG_VIRTIO_IOMMU",
    "CONFIG_PAGE_POOL_STATS",
    "CONFIG_DMA_API_DEBUG",
    "CONFIG_EVENT_TRACING",
    "CONFIG_IOMMU_DEBUGFS",
];

/// Which Linux this is.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Kernel {
    pub release: Option<String>,
    /// Its first two numbers.
    pub version: Option<(u32, u32)>,
}

impl Kernel {
    pub(super) fn read(tree: &Tree) -> Self {
        let release = tree.text("proc/sys/kernel/osrelease").or_else(|| {
            // Linux version RELEASE (its builder) ..
            let version = tree.text("proc/version")?;
            version.split_whitespace().nth(2).map(str::to_owned)
        });
        let release = release.filter(|release| !release.is_empty());
        let version = release.as_deref().and_then(version);
        Kernel { release, version }
    }

    /// Whether it is as new as that; `None` if that is not known.
    pub fn since(&self, major: u32, minor: u32) -> Option<bool> {
        Some(self.version? >= (major, minor))
    }
}

/// The first two numbers of `6.12.8-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The processor.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cpu {
    pub vendor: Option<String>,
    /// Whether it says that a hypervisor is below; x86 only.
    pub hypervisor: Option<bool>,
}

impl Cpu {
    pub(super) fn read(tree: &Tree) -> Self {
        // Many CPUs make a long file. The first one is enough.
        let text = tree.folder("proc").and_then(|proc| proc.begin("cpuinfo"));
        let text = text.unwrap_or_default();
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let value = lines.find(|(key, _)| key.trim() == name)?.1.trim();
            Some(value.to_owned()).filter(|value| !value.is_empty())
        };
        let vendor = field("vendor_id")
            .map(|id| match id.as_str() {
                "GenuineIntel" => "Intel".into(),
                "AuthenticAMD" => "AMD".into(),
                "HygonGenuine" => "Hygon".into(),
                _ => id,
            })
            .or_else(|| field("CPU implementer").map(implementer));
        let flags = field("flags");
        let hypervisor =
            flags.map(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"));
        Cpu { vendor, hypervisor }
    }

    /// Whether it is of the x86 family; so may be one that does not say.
    pub fn may_be_x86(&self) -> bool {
        // Arm's features have another name.
        self.vendor.is_none() || self.hypervisor.is_some() || self.is_by(&["Intel", "AMD", "Hygon"])
    }

    /// Whether one of these made it.
    pub fn is_by(&self, vendors: &[&str]) -> bool {
        let vendor = self.vendor.as_deref();
        vendor.is_some_and(|vendor| vendors.contains(&vendor))
    }
}

/// The maker of an Arm processor, by the number in its identification register.
fn implementer(id: String) -> String {
    let name = match id.as_str() {
        "0x41" => "Arm",
        "0x42" => "Broadcom",
        "0x43" => "Cavium",
        "0x46" => "Fujitsu",
        "0x48" => "HiSilicon",
        "0x4e" => "NVIDIA",
        "0x50" => "APM",
        "0x51" => "Qualcomm",
        "0x61" => "Apple",
        "0x6d" => "Microsoft",
        "0xc0" => "Ampere",
        _ => return format!("Arm implementer {id}"),
    };
    name.into()
}

/// Where the kernel's configuration was read, and of [`OPTIONS`] those that it sets.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Config {
    pub file: String,
    pub options: BTreeMap<&'static str, String>,
}

impl Config {
    pub(super) fn read(tree: &Tree, kernel: &Kernel) -> Option<Self> {
        let release = kernel.release.as_deref();
        let release = release.filter(|release| !release.contains('/'));
        let plain = release.and_then(|release| {
            let places = [
                format!("boot/config-{release}"),
                format!("lib/modules/{release}/config"),
            ];
            places.into_iter().find_map(|file| {
                let text = tree.text_of(&file, CONFIG_BYTES)?;
                Some((file, text))
            })
        });
        let (file, text) = plain.or_else(|| packed(tree))?;
        let mut options = BTreeMap::new();
        for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
            if let Some(known) = OPTIONS.into_iter().find(|known| *known == name) {
                options.insert(known, value.trim().to_owned());
            }
        }
        Some(Config { file, options })
    }

    /// Whether an option is on.
    pub fn has(&self, option: &str) -> bool {
        self.options.get(option).is_some_and(|value| value == "y")
    }
}

/// The configuration that the kernel carries in itself, if it does.
fn packed(tree: &Tree) -> Option<(String, String)> {
    let (path, bytes) = tree.folder("proc")?.bytes("config.gz", CONFIG_BYTES)?;
    let mut text = String::new();
    let mut unpacked = GzDecoder::new(bytes.as_slice()).take(CONFIG_BYTES);
    match unpacked.read_to_string(&mut text) {
        Ok(_) => Some(("proc/config.gz".into(), text)),
        Err(_) => {
            tree.trouble(&path, "cannot be unpacked");
            None
        }
    }
}

/// Huge pages, which make large leaves of an IOMMU's tables possible.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HugePages {
    /// When the kernel makes them unasked: always, madvise or never.
    pub transparent: Option<String>,
    pub reserved: Vec<Reserved>,
}

/// Pages of one size that are set aside.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Reserved {
    pub page_kib: u64,
    pub pages: Option<u64>,
}

impl HugePages {
    pub(super) fn read(tree: &Tree) -> Self {
        let transparent = tree.text("sys/kernel/mm/transparent_hugepage/enabled");
        let chosen = |text: String| {
            let (_, rest) = text.split_once('[')?;
            Some(rest.split_once(']')?.0.to_owned())
        };
        let mut reserved = Vec::new();
        if let Some(folder) = tree.folder("sys/kernel/mm/hugepages") {
            for name in folder.names() {
                let size = name.strip_prefix("hugepages-");
                let size = size.and_then(|size| size.strip_suffix("kB")?.parse().ok());
                let Some(page_kib) = size else { continue };
                let pages = folder.folder(&name).and_then(|of| of.text("nr_hugepages"));
                let pages = pages.and_then(|pages| pages.parse().ok());
                reserved.push(Reserved { page_kib, pages });
            }
        }
        reserved.sort_by_key(|of| of.page_kib);
        HugePages {
            transparent: transparent.and_then(chosen),
            reserved,
        }
    }
}

/// What is known of the kernel's trace events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Tracing {
    /// The kernel has none, or not what shows them.
    Absent,
    /// The folder for the file system that shows them is empty.
    NotMounted,
    /// They are there, and this user may not look.
    Denied,
    Readable,
}

/// The trace events that a capture is made of: how many the kernel has, where that can be seen.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Events {
    pub access: Tracing,
    /// The folder that was looked into, below the root.
    pub folder: Option<&'static str>,
    pub dma: Option<usize>,
    pub iommu: Option<usize>,
}

impl Events {
    pub(super) fn read(tree: &Tree) -> Self {
        let mut best = Events {
            access: Tracing::Absent,
            folder: None,
            dma: None,
            iommu: None,
        };
        for path in ["sys/kernel/tracing", "sys/kernel/debug/tracing"] {
            let Some(folder) = tree.folder(path) else {
                continue;
            };
            let found = |access| Events {
                access,
                folder: Some(path),
                dma: None,
                iommu: None,
            };
            match folder.access() {
                Access::Absent => {}
                Access::Denied => {
                    best = found(Tracing::Denied);
                    break;
                }
                Access::Listed => {
                    let events = folder.folder("events");
                    match events.as_ref().map_or(Access::Absent, Folder::access) {
                        Access::Listed => {
                            let of = |subsystem| Some(count(events.as_ref()?, subsystem));
                            best = Events {
                                dma: of("dma"),
                                iommu: of("iommu"),
                                ..found(Tracing::Readable)
                            };
                            break;
                        }
                        Access::Denied => {
                            best = found(Tracing::Denied);
                            break;
                        }
                        Access::Absent if best.access == Tracing::Absent => {
                            best = found(Tracing::NotMounted);
                        }
                        Access::Absent => {}
                    }
                }
            }
        }
        best
    }
}

/// Events of a subsystem: a folder each, beside two files.
fn count(events: &Folder<'_>, subsystem: &str) -> usize {
    let names = events.folder(subsystem).map(|of| of.names());
    let is_event = |name: &String| name != "enable" && name != "filter";
    names.map_or(0, |names| names.into_iter().filter(is_event).count())
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn a_version_is_two_numbers() {
        assert_eq!(version("6.12.8-amd64"), Some((6, 12)));
        assert_eq!(version("7.0"), Some((7, 0)));
        for release in ["", "6", "x.y", "99999999999.1", "6.-1"] {
            assert_eq!(version(release), None, "{release}");
        }
    }
}
