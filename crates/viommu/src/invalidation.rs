// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What an invalidation names, as decoded from its descriptor (VT-d 4.1 §6.5.2).

use core::fmt;
use ioatlas_dma::{invalidation::Caches, units::*};

/// Which cached translations an invalidation removes.
#[allow(missing_docs)] // its variants say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Selection {
    Global,
    /// Those of one domain.
    Domain(DomainId),
    /// Those of some pages of one domain.
    Pages(DomainId, IovaRange),
}

/// Which cached context entries.
#[allow(missing_docs)] // its variants say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContextSelection {
    Global,
    /// Those that name one domain.
    Domain(DomainId),
    /// Those of a device, or of several functions of it.
    Device {
        /// The domain that the entry named when it was cached.
        domain: DomainId,
        source: SourceId,
        /// Bits of the source id that do not matter: 0, 4, 6 or 7.
        mask: u16,
    },
}

/// What must be drained before the invalidation is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Drain {
    /// Reads in flight (DR).
    pub reads: bool,
    /// Writes in flight (DW).
    pub writes: bool,
}

/// An invalidation, as decoded from its descriptor.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalidation {
    /// Of the IOTLB, and of the walk caches unless hinted otherwise.
    Iotlb {
        selection: Selection,
        /// Leaves only (IH = 1), or walk caches too.
        caches: Caches,
        drain: Drain,
    },
    /// Of the context cache.
    Context { selection: ContextSelection },
    /// Of the TLB of a device.
    DeviceTlb { source: SourceId, pages: IovaRange },
}

impl Selection {
    /// Whether it names page `page` of `domain`.
    pub fn names(&self, domain: DomainId, page: IovaPage) -> bool {
        self.meets(domain, page, page)
    }
    /// Whether it names any page from `first` to `last` of `domain`.
    pub(crate) fn meets(&self, domain: DomainId, first: IovaPage, last: IovaPage) -> bool {
        match self {
            Selection::Global => true,
            Selection::Domain(ours) => *ours == domain,
            Selection::Pages(ours, range) => {
                *ours == domain && range.first <= last && first < range.end()
            }
        }
    }
    /// Whether it names any page below an entry with tag `prefix`, which covers
    /// 2^`span_lg2` pages of `domain`.
    pub(crate) fn meets_span(&self, domain: DomainId, prefix: u64, span_lg2: u32) -> bool {
        let first = prefix << span_lg2;
        self.meets(
            domain,
            IovaPage(first),
            IovaPage(first | ((1 << span_lg2) - 1)),
        )
    }
}

impl ContextSelection {
    /// Whether it names the entry of `source`, or might where the domain is not known yet.
    pub(crate) fn names(&self, source: SourceId, domain: Option<DomainId>) -> bool {
        let same = |ours: &DomainId| domain.is_none_or(|theirs| *ours == theirs);
        match self {
            ContextSelection::Global => true,
            ContextSelection::Domain(ours) => same(ours),
            ContextSelection::Device {
                domain,
                source: ours,
                mask,
            } => same(domain) && (ours.0 ^ source.0) & !mask == 0,
        }
    }
}

impl Drain {
    /// Whether accesses of `kind` are.
    pub fn covers(self, kind: AccessKind) -> bool {
        match kind {
            AccessKind::Read => self.reads,
            AccessKind::Write => self.writes,
        }
    }
}

impl fmt::Display for Invalidation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Invalidation::Iotlb {
                selection,
                caches,
                drain,
            } => {
                match selection {
                    Selection::Global => write!(f, "all translations"),
                    Selection::Domain(d) => write!(f, "domain {d}"),
                    Selection::Pages(d, range) => write!(f, "pages {range} of domain {d}"),
                }?;
                if *caches == Caches::Leaves {
                    write!(f, ", leaves only")?;
                }
                match (drain.reads, drain.writes) {
                    (true, true) => write!(f, ", drained"),
                    (true, false) => write!(f, ", reads drained"),
                    (false, true) => write!(f, ", writes drained"),
                    (false, false) => write!(f, ", not drained"),
                }
            }
            Invalidation::DeviceTlb { source, pages } => {
                write!(f, "pages {pages} of the TLB of {source}")
            }
            Invalidation::Context { selection } => match selection {
                ContextSelection::Global => write!(f, "all context entries"),
                ContextSelection::Domain(d) => write!(f, "context entries of domain {d}"),
                ContextSelection::Device { source, mask, .. } => {
                    write!(f, "context entry of {source}, mask {mask:#x}")
                }
            },
        }
    }
}
