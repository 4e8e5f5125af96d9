// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Cases by name: `domain/magazine+deferred-percpu/ring256/1`.

use crate::{
    Contestant, Control, Failure, Pattern, Sizes,
    bounce::Way,
    pattern::{PatternError, SizesError},
    platform::host,
    subjects::{
        Addressed, AllocatorAlone, Bounced, Nothing, Slices, StreamingMaps, TableAlone,
        VirtioShares, Whole,
    },
};
use ioatlas_dma::{
    design::{self, Design},
    domain::{AllocatorConfig, DomainConfig, PolicyConfig},
    table::{Format, TableConfig, fmt::VtdSecond48},
    translator::{Paged, Uncached},
};
use ioatlas_host::Host;
use std::{fmt, str::FromStr, sync::Arc};

/// What of ours is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A whole domain, on a VT-d table of 48 bits, under a unit that caches nothing.
    Domain(Design),
    /// An allocator alone, over the same aperture.
    Allocator(AllocatorConfig),
    /// A page table alone, without an allocator.
    Table,
    /// The DMA API over such a domain, 64 bytes through a bounce slot that is kept: sizes of the
    /// pattern are not looked at.
    Bounce(Way),
    /// The same of a slice.
    Slice(Way),
    /// The same by the `Hal` of virtio-drivers.
    Virtio(Way),
    /// The same by dma-api.
    DmaApi(Way),
    /// The address API of the DMA API over such a domain.
    Raw,
    /// The control loop: see [`crate::control`].
    Control,
    /// Nothing: the pattern around the subject.
    Nothing,
}

/// One thing to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Case {
    pub kind: Kind,
    pub pattern: Pattern,
    pub sizes: Sizes,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Domain(design) => {
                let DomainConfig {
                    allocator, policy, ..
                } = design.domain;
                write!(f, "domain/{}+{}", allocator.name(), policy.name())
            }
            Kind::Allocator(allocator) => write!(f, "allocator/{}", allocator.name()),
            Kind::Table => write!(f, "table"),
            Kind::Bounce(way) => write!(f, "bounce/{}", way.name()),
            Kind::Slice(way) => write!(f, "slice/{}", way.name()),
            Kind::Virtio(way) => write!(f, "virtio/{}", way.name()),
            Kind::DmaApi(way) => write!(f, "dma-api/{}", way.name()),
            Kind::Raw => write!(f, "raw"),
            Kind::Control => write!(f, "control"),
            Kind::Nothing => write!(f, "nothing"),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case {
            kind,
            pattern,
            sizes,
        } = self;
        write!(f, "{kind}/{pattern}/{}", sizes.name())
    }
}

/// Words that name no case.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // its fields say it
pub enum CaseError {
    /// Too few parts, too many, or none of the kinds.
    #[error(
        "`{0}` is no case: want domain/ALLOCATOR+POLICY/PATTERN/SIZES, allocator/ALLOCATOR/PATTERN/SIZES, bounce/WAY/PATTERN/SIZES, slice, virtio or dma-api /WAY/PATTERN/SIZES, or table, raw, control or nothing /PATTERN/SIZES"
    )]
    Shape(String),
    /// Neither way that data go.
    #[error("`{word}` is no way for data ({})", Way::ALL.map(|way| way.name()).join(", "))]
    Way { word: String },
    #[error(transparent)]
    Pattern(#[from] PatternError),
    #[error(transparent)]
    Sizes(#[from] SizesError),
    /// No registered allocator has this name.
    #[error("`{word}` is no allocator ({})", names(design::allocators()))]
    Allocator { word: String },
    /// No registered policy has this name.
    #[error("`{word}` is no policy ({})", names(design::policies()))]
    Policy { word: String },
}

/// The names of `entries`, as a list.
fn names<C>(entries: impl Iterator<Item = design::Entry<C>>) -> String {
    entries.map(|e| e.name).collect::<Vec<_>>().join(", ")
}

/// The allocator of that name.
pub fn allocator(word: &str) -> Result<AllocatorConfig, CaseError> {
    let entry = design::allocators().find(|a| a.name == word);
    let entry = entry.ok_or_else(|| CaseError::Allocator { word: word.into() })?;
    Ok(entry.config)
}

/// The policy of that name.
pub fn policy(word: &str) -> Result<PolicyConfig, CaseError> {
    let entry = design::policies().find(|p| p.name == word);
    let entry = entry.ok_or_else(|| CaseError::Policy { word: word.into() })?;
    Ok(entry.config)
}

fn way(word: &str) -> Result<Way, CaseError> {
    let named = Way::ALL.into_iter().find(|way| way.name() == word);
    named.ok_or_else(|| CaseError::Way { word: word.into() })
}

impl FromStr for Case {
    type Err = CaseError;
    /// As `Display` writes them.
    fn from_str(words: &str) -> Result<Self, CaseError> {
        let shape = || CaseError::Shape(words.into());
        let parts: Vec<&str> = words.split('/').collect();
        let (kind, pattern, sizes) = match parts[..] {
            ["domain", design, pattern, sizes] => {
                let (a, p) = design.split_once('+').ok_or_else(shape)?;
                let design = DomainConfig::new(allocator(a)?, policy(p)?).into();
                (Kind::Domain(design), pattern, sizes)
            }
            ["allocator", a, pattern, sizes] => (Kind::Allocator(allocator(a)?), pattern, sizes),
            ["bounce", way, pattern, sizes] => (Kind::Bounce(self::way(way)?), pattern, sizes),
            ["slice", way, pattern, sizes] => (Kind::Slice(self::way(way)?), pattern, sizes),
            ["virtio", way, pattern, sizes] => (Kind::Virtio(self::way(way)?), pattern, sizes),
            ["dma-api", way, pattern, sizes] => (Kind::DmaApi(self::way(way)?), pattern, sizes),
            ["table", pattern, sizes] => (Kind::Table, pattern, sizes),
            ["raw", pattern, sizes] => (Kind::Raw, pattern, sizes),
            ["control", pattern, sizes] => (Kind::Control, pattern, sizes),
            ["nothing", pattern, sizes] => (Kind::Nothing, pattern, sizes),
            _ => return Err(shape()),
        };
        Ok(Case {
            kind,
            pattern: pattern.parse()?,
            sizes: sizes.parse()?,
        })
    }
}

/// Frames of the arena: enough for the tables of two threads with 200,000 ranges of mixed sizes
/// each. Those never used cost address space only.
const FRAMES: usize = 1 << 15;

type Bare = Whole<Host, Paged<Host, VtdSecond48, Arc<Uncached<Host>>>>;

/// A subject of ours, made.
#[allow(missing_docs)] // its variants say it
pub enum Ours {
    Domain(Box<Bare>),
    Allocator(Box<AllocatorAlone<Host>>),
    Table(Box<TableAlone<Host, VtdSecond48>>),
    Bounce(Box<Bounced>),
    Slice(Box<Slices>),
    Virtio(Box<VirtioShares>),
    DmaApi(Box<StreamingMaps>),
    Raw(Box<Addressed>),
    Control(Control<Host>),
    Nothing(Nothing),
}

impl Ours {
    /// On a platform of its own, with `slots` slots.
    ///
    /// # Errors
    /// The design cannot work there.
    pub fn new(kind: Kind, slots: usize) -> Result<Self, Failure> {
        let platform = Arc::new(host(FRAMES, slots)?);
        Ok(match kind {
            Kind::Domain(design) => Ours::Domain(Box::new(Whole::uncached(platform, design)?)),
            Kind::Allocator(config) => {
                let aperture = VtdSecond48::aperture();
                let alone = AllocatorAlone::new(platform, config, aperture)?;
                Ours::Allocator(Box::new(alone))
            }
            Kind::Table => {
                let table = TableAlone::new(platform, TableConfig::default())?;
                Ours::Table(Box::new(table))
            }
            Kind::Bounce(way) => Ours::Bounce(Box::new(Bounced::new(platform, way)?)),
            Kind::Slice(way) => Ours::Slice(Box::new(Slices::new(platform, way)?)),
            Kind::Virtio(way) => Ours::Virtio(Box::new(VirtioShares::new(platform, way)?)),
            Kind::DmaApi(way) => Ours::DmaApi(Box::new(StreamingMaps::new(platform, way)?)),
            Kind::Raw => Ours::Raw(Box::new(Addressed::new(platform)?)),
            Kind::Control => Ours::Control(Control::new(platform)),
            Kind::Nothing => Ours::Nothing(Nothing),
        })
    }

    /// It under `pattern`, on so many threads.
    pub fn contestant(&self, pattern: Pattern, sizes: Sizes, threads: usize) -> Contestant<'_> {
        match self {
            Ours::Domain(s) => Contestant::new(&**s, pattern, sizes, threads),
            Ours::Allocator(s) => Contestant::new(&**s, pattern, sizes, threads),
            Ours::Table(s) => Contestant::new(&**s, pattern, sizes, threads),
            Ours::Bounce(s) => Contestant::new(&**s, pattern, sizes, threads),
            Ours::Slice(s) => Contestant::new(&**s, pattern, sizes, threads),
            Ours::Virtio(s) => Contestant::new(&**s, pattern, sizes, threads),
            Ours::DmaApi(s) => Contestant::new(&**s, pattern, sizes, threads),
            Ours::Raw(s) => Contestant::new(&**s, pattern, sizes, threads),
            Ours::Control(s) => Contestant::new(s, pattern, sizes, threads),
            Ours::Nothing(s) => Contestant::new(s, pattern, sizes, threads),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for name in [
            "domain/magazine+deferred-percpu/ring256/1",
            "domain/rbtree+strict/replace100000/mixed",
            "allocator/vmem/immediate/mixed",
            "table/ring1024/1",
            "domain/magazine+strict/bursts16/1",
            "bounce/read/ring256/1",
            "slice/read/ring256/1",
            "virtio/write/ring256/1",
            "dma-api/read/ring256/1",
            "raw/replace1000/1",
            "control/ring256/mixed",
            "nothing/producer-consumer/1",
        ] {
            let case: Case = name.parse().unwrap();
            assert_eq!(case.to_string(), name);
        }
    }

    #[test]
    fn what_names_nothing_is_named_with_what_there_is() {
        let error = |name: &str| name.parse::<Case>().unwrap_err().to_string();
        for name in [
            "",
            "domain",
            "domain/magazine/ring256/1",
            "table/ring256/1/1",
            "x/y/ring256/1",
        ] {
            assert!(
                error(name).starts_with(&format!("`{name}` is no case: want domain/")),
                "{name}"
            );
        }
        let said = error("allocator/best/ring256/1");
        assert!(
            said.starts_with("`best` is no allocator (rbtree, "),
            "{said}"
        );
        let said = error("domain/magazine+lax/ring256/1");
        assert!(said.starts_with("`lax` is no policy (strict, "), "{said}");
        let said = error("bounce/up/ring256/1");
        assert_eq!(said, "`up` is no way for data (read, write)");
        assert!(error("table/ring7/1").starts_with("`ring7` is no pattern (immediate, "));
        assert!(error("table/ring256/2").starts_with("`2` names no sizes (1, mixed)"));
    }
}
