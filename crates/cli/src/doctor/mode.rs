// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How the kernel maps for a device, and what it does where nothing is said.
//!
//! The command line is stronger than the kernel's configuration, and a later option stronger than
//! an earlier one of its kind; but strict by an option of a driver (`intel_iommu=strict`,
//! `amd_iommu=fullflush`) is stronger than `iommu.strict=0`. What the groups have is the truth: a
//! unit in caching mode makes everything strict, whatever was asked for.

use super::device::Group;
use super::machine::{Config, Cpu};
use serde::{Serialize, Serializer};

/// How addresses of a device are translated, and when an unmap is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    Lazy,
    Strict,
    /// Lazy or strict: kernels before 5.15 do not say.
    Translated,
    Passthrough,
    Blocked,
    /// VFIO maps, for a program or a guest: for this device, or another of its group.
    Vfio,
    /// The device is behind no IOMMU that Linux uses.
    NoIommu,
    Unknown,
}

/// In small letters; what is not known is null.
impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Mode::Unknown => serializer.serialize_none(),
            mode => serializer.serialize_str(&mode.name().to_lowercase().replace(' ', "-")),
        }
    }
}

impl Mode {
    /// As a group's file `type` has it. `splits` says whether this kernel has a type for lazy.
    pub(super) fn of_type(text: &str, splits: bool) -> Self {
        match text {
            "DMA-FQ" => Mode::Lazy,
            "DMA" if splits => Mode::Strict,
            "DMA" => Mode::Translated,
            "identity" => Mode::Passthrough,
            "blocked" => Mode::Blocked,
            _ => Mode::Unknown,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Lazy => "lazy",
            Mode::Strict => "strict",
            Mode::Translated => "translated",
            Mode::Passthrough => "passthrough",
            Mode::Blocked => "blocked",
            Mode::Vfio => "VFIO",
            Mode::NoIommu => "no IOMMU",
            Mode::Unknown => "unknown",
        }
    }

    /// Whether `iommu:*` events see the maps of such a device, as far as is known. VFIO's are made
    /// by `iommu_map` as well.
    pub fn may_translate(self) -> bool {
        use Mode::{Lazy, Strict, Translated, Unknown, Vfio};
        matches!(self, Lazy | Strict | Translated | Vfio | Unknown)
    }

    /// What it means.
    pub fn legend(self) -> &'static str {
        match self {
            Mode::Lazy => {
                "unmaps wait in a queue, and one flush serves many: cheap, but for up to 10 ms the \
                 device may still access memory that was unmapped"
            }
            Mode::Strict => {
                "every unmap waits until the IOMMU has forgotten the address: safe, and what costs \
                 most"
            }
            Mode::Translated => {
                "lazy or strict: kernels before 5.15 do not say which (their log may)"
            }
            Mode::Passthrough => {
                "addresses are not translated: maps cost next to nothing, and the device can \
                 access all memory"
            }
            Mode::Blocked => "the device can access nothing",
            Mode::Vfio => {
                "a program or guest may map for itself, through VFIO, for the whole group: dma:* \
                 events show nothing of it, iommu:map does"
            }
            Mode::NoIommu => {
                "addresses are physical: maps cost next to nothing, and the device can access all \
                 memory"
            }
            Mode::Unknown => {
                "the kernel says nothing, or what is not known here (groups have a type since \
                 Linux 5.11)"
            }
        }
    }
}

/// What says how devices are mapped for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Source {
    CommandLine,
    KernelConfig,
    /// Only seen in the groups, which agree.
    Groups,
}

/// What devices get where nothing else is said.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DefaultMode {
    /// `None` if neither a setting nor the groups say it.
    pub mode: Option<Mode>,
    pub source: Option<Source>,
    /// The options that say it, as they are there.
    pub by: Vec<String>,
}

/// Options on the kernel's command line that are about IOMMUs and DMA.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct CommandLine {
    /// The options, in their order; `None` if the command line cannot be read.
    pub options: Option<Vec<String>>,
    /// The option that switches IOMMUs off.
    pub off: Option<String>,
    /// The option that switches Intel's on.
    pub on: Option<String>,
    #[serde(skip)]
    passthrough: Option<(bool, String)>,
    #[serde(skip)]
    strict: Option<(bool, String)>,
}

impl CommandLine {
    pub(super) fn parse(text: Option<&str>, cpu: &Cpu) -> Self {
        let mut line = CommandLine::default();
        let Some(text) = text else { return line };
        let mut options = Vec::new();
        let mut legacy = None;
        // What follows -- is for init.
        let words = text.split_whitespace().take_while(|word| *word != "--");
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let has = |part| value.split(',').any(|one| one == part);
            let whole = || word.to_owned();
            match key {
                "iommu.passthrough" => set(&mut line.passthrough, value, word),
                "iommu.strict" => set(&mut line.strict, value, word),
                "iommu" if cpu.may_be_x86() => {
                    if has("pt") || has("nopt") {
                        line.passthrough = Some((has("pt"), whole()));
                    }
                    if has("off") {
                        line.off = Some(whole());
                    }
                }
                "intel_iommu" | "amd_iommu" => {
                    if has("strict") || has("fullflush") {
                        legacy = Some((true, whole()));
                    }
                    // The other vendor's option is without effect.
                    let other = match key {
                        "amd_iommu" => cpu.is_by(&["Intel"]),
                        _ => cpu.is_by(&["AMD", "Hygon"]),
                    };
                    if has("off") && !other {
                        line.off = Some(whole());
                    } else if has("on") && key == "intel_iommu" {
                        line.on = Some(whole());
                        line.off.take_if(|off| off.starts_with("intel_iommu="));
                    }
                }
                "swiotlb" | "iommu.forcedac" => {}
                key if key.starts_with("arm-smmu") => {}
                _ => continue,
            }
            options.push(whole());
        }
        line.options = Some(options);
        line.strict = legacy.or(line.strict);
        line
    }

    /// Whether every map is bounced whose address is not translated.
    pub fn bounces(&self) -> bool {
        let mut options = self.options.iter().flatten();
        options.any(|option| {
            let value = option.strip_prefix("swiotlb=");
            value.is_some_and(|value| value.split(',').any(|part| part == "force"))
        })
    }
}

/// Takes `word`, whose value is `value`, unless it is neither true nor false.
fn set(option: &mut Option<(bool, String)>, value: &str, word: &str) {
    if let Some(is) = truth(value) {
        *option = Some((is, word.into()));
    }
}

/// A truth value as the kernel reads it.
fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        text if text.starts_with(['1', 'y', 't']) || text.starts_with("on") => Some(true),
        text if text.starts_with(['0', 'n', 'f']) || text.starts_with("of") => Some(false),
        _ => None,
    }
}

impl DefaultMode {
    pub(super) fn of(line: &CommandLine, config: Option<&Config>, groups: &[Group]) -> Self {
        let by_line = |mode, by: &[&String]| DefaultMode {
            mode: Some(mode),
            source: Some(Source::CommandLine),
            by: by.iter().map(|option| (*option).clone()).collect(),
        };
        let configured = |option: &str| config.is_some_and(|config| config.has(option));
        let by_config = |mode, option: &str| DefaultMode {
            mode: Some(mode),
            source: Some(Source::KernelConfig),
            by: vec![format!("{option}=y")],
        };
        match (&line.passthrough, &line.strict) {
            (Some((true, by)), _) => return by_line(Mode::Passthrough, &[by]),
            (None, _) if configured("CONFIG_IOMMU_DEFAULT_PASSTHROUGH") => {
                let option = "CONFIG_IOMMU_DEFAULT_PASSTHROUGH";
                return by_config(Mode::Passthrough, option);
            }
            (translated, Some((strict, by))) => {
                let mode = if *strict { Mode::Strict } else { Mode::Lazy };
                let translated = translated.as_ref().map(|(_, by)| by);
                let by: Vec<&String> = translated.into_iter().chain([by]).collect();
                return by_line(mode, &by);
            }
            _ => {}
        }
        for (option, mode) in [
            ("CONFIG_IOMMU_DEFAULT_DMA_STRICT", Mode::Strict),
            ("CONFIG_IOMMU_DEFAULT_DMA_LAZY", Mode::Lazy),
        ] {
            if configured(option) {
                return by_config(mode, option);
            }
        }
        let mut modes = groups.iter().map(|group| group.mode);
        let first = modes.next().filter(|mode| *mode != Mode::Unknown);
        let agreed = first.filter(|first| modes.all(|mode| mode == *first));
        DefaultMode {
            mode: agreed,
            source: agreed.map(|_| Source::Groups),
            by: Vec::new(),
        }
    }
}
