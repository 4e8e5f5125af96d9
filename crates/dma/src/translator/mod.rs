// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Translators: where a device's accesses meet their translations.
//!
//! [`Paged`] is our own radix table under an invalidation engine. A kernel that keeps the tables
//! (VFIO, iommufd) is another translator, with no format at all; [`crate::domain::Domain`] works
//! unchanged above both.

mod combined;
mod fast_path;
mod paged;
mod uncached;
mod unit;

#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use crate::table::Format;
pub use crate::table::{
    Reclaim, TableConfig,
    fmt::{VtdSecond39, VtdSecond48, VtdSecond57},
};
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use fast_path::FastPath;
pub use paged::{Paged, PagedError};
pub use uncached::Uncached;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use unit::{RemappingUnit, TransientHint};

use crate::{
    invalidation::{Invalidate, InvalidateError, OnMap},
    iova::AllocKind,
    platform::*,
    table::{Census, Cleared, InstallError, LeafAttrs, RawError, TableSpan},
    units::*,
};
use alloc::sync::Arc;

/// Holds the translations of one domain. Promised is its name, as the bound of a parameter; to
/// write one takes [`FastPath`], too, and types of the mechanism, which the feature `unstable`
/// documents.
///
/// # Safety
/// A domain allocates pages again, and frees frames, on the word of its translator. As
/// long as that lives
///
/// * a device that is attached reaches by a page of `range` what [`install`](Self::install)
///   was told, while that is installed, and else nothing;
/// * what [`clear`](Self::clear) was given is in caches at most when it returns, and those are
///   emptied by [`unit`](Self::unit), always the same, under [`id`](Self::id), always the same too;
/// * a frame that comes out ([`clear`](Self::clear), [`make_room`](Self::make_room),
///   [`dismantle`](Self::dismantle)) was the translator's own, comes out once, and no table leads
///   to it any more;
/// * of two that [`claim`](Self::claim) one mapping one is refused; when [`detach`](Self::detach)
///   has succeeded no access of the device does;
/// * the [`Authority`] that it is handed is handed on to what it is made of, for that call,
///   and to nothing else.
///
/// Nothing checks it at run time; over the software unit the oracle does (P1 to P9, P14), and
/// [`audit`](Self::audit) looks at what is there.
#[allow(unsafe_code)]
pub unsafe trait Translator<P: Platform>: FastPath<P> {
    /// What invalidates the caches in front of it.
    type Unit: Invalidate;

    /// The unit by which those caches are emptied.
    fn unit(&self) -> &Self::Unit;
    /// The platform whose memory tables and unit are in; `None` where they are in no platform's, as
    /// those that a kernel keeps. A domain is over the same.
    fn platform(&self) -> Option<&Arc<P>>;
    /// The tag of this domain's cached translations.
    fn id(&self) -> DomainId;
    /// IOVA pages that can be translated. Page 0 may be among them.
    fn aperture(&self) -> IovaRange;

    /// Makes `range` translate to `runs`, in order. The caller holds the allocation.
    ///
    /// Ordering: the entries are stored with release and written back; a unit sees them once it
    /// sees what the caller does next in order (a doorbell write with the bus's usual barrier).
    ///
    /// # Errors
    /// With the number of pages installed before the failure; the caller clears them.
    fn install(
        &self,
        by: Authority,
        p: &P,
        range: IovaRange,
        runs: impl Iterator<Item = PhysRun>,
        leaf: LeafAttrs,
    ) -> Result<(), InstallError>;

    /// Whether [`make_room`](Self::make_room) may find something to do for a mapping of `range`.
    #[inline]
    fn may_promote(&self, _range: IovaRange) -> bool {
        false
    }
    /// Detaches the empty tables in the way of the large leaves that [`install`](Self::install)
    /// would like to write. The caller holds the allocation, and flushes what comes out from leaf
    /// and walk caches before it installs (P14).
    fn make_room(
        &self,
        _by: Authority,
        _p: &P,
        _range: IovaRange,
        _runs: impl Iterator<Item = PhysRun>,
        _detached: impl FnMut(TableFrame),
    ) {
    }

    /// Removes the translations of `range`, and gives each table detached on the way to `detached`.
    /// The caller holds the allocation.
    fn clear(
        &self,
        by: Authority,
        p: &P,
        range: IovaRange,
        kind: AllocKind,
        detached: impl FnMut(TableFrame),
    ) -> Cleared;

    /// A table that [`clear`](Self::clear) of just its pages would detach: the one that follows that
    /// of `after`, or the first; from the lowest pages up, and each before the one above it. `None`
    /// behind the last one, and where tables that were emptied in pieces are to stay.
    fn next_table(&self, _p: &P, _after: Option<IovaRange>) -> Option<TableSpan> {
        None
    }

    /// Lets the address API end the mapping that begins at `page`, whose
    /// allocation the caller holds.
    fn give_up(&self, by: Authority, p: &P, page: IovaPage);
    /// The address API: checks that `range` is exactly one live mapping and takes it, so that of
    /// two racing callers one wins.
    ///
    /// # Errors
    /// Why it is not.
    fn claim(&self, by: Authority, p: &P, range: IovaRange) -> Result<AllocKind, RawError>;

    /// Lets `device` use this domain.
    ///
    /// # Errors
    /// The device cannot be attached.
    fn attach(&self, by: Authority, p: &P, device: SourceId) -> Result<(), AttachError>;
    /// Ends that; when it returns, no access of `device` succeeds.
    ///
    /// # Errors
    /// The device was not attached, or the invalidation failed.
    fn detach(&self, by: Authority, p: &P, device: SourceId) -> Result<(), AttachError>;

    /// Shows `each` every mapping that begins in `within` and is not shared, with how its range was
    /// chosen. Nothing else is active. A translator that cannot say shows none, and their ranges do
    /// not go back to the owner they are borrowed from.
    fn mappings(&self, _p: &P, _within: IovaRange, _each: impl FnMut(IovaRange, AllocKind)) {}
    /// Every table, root included, for the end of the domain. No device is attached any more.
    fn dismantle(&mut self, by: Authority, p: &P, detached: impl FnMut(TableFrame));
    /// Gives back the domain id, after the last flush.
    fn retire_id(&self, by: Authority, p: &P);

    /// Checks every invariant of the translations, and returns their census. Nothing may change
    /// them meanwhile. Leaves in `shared` are counted.
    ///
    /// # Errors
    /// A sentence that names the first invariant that does not hold.
    fn audit(&self, p: &P, shared: Option<IovaRange>) -> Result<Census, alloc::string::String>;
}

/// Why a device cannot be attached or detached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its fields say it
pub enum AttachError {
    /// It is attached already, here or elsewhere.
    #[error("device {device} is attached to domain {domain} already")]
    Attached {
        device: SourceId,
        /// Where it is attached.
        domain: DomainId,
    },
    /// Another attach or detach of it is under way here.
    #[error("device {device} is being attached or detached")]
    Busy { device: SourceId },
    /// It is not attached here.
    #[error("device {device} is not attached to domain {domain}")]
    NotAttached { device: SourceId, domain: DomainId },
    /// The heap has no memory to note one more device.
    #[error("device {device}: no memory to note one more device")]
    NoMemory { device: SourceId },
    /// No frame for a context table.
    #[error("no frame for the context table of bus {bus:#x}")]
    NoFrame { bus: u8 },
    /// The unit does not support the table's geometry (VT-d 4.1 §11.4.2, SAGAW).
    #[error("the unit does not support {levels}-level tables")]
    Levels {
        /// Levels of the table.
        levels: u32,
    },
    /// The id is that of another domain's table: what one maps would be cached for both
    /// (VT-d 4.1 §9.3, DID).
    #[error("device {device}: domain id {domain} belongs to another table than that at {root}")]
    IdInUse {
        device: SourceId,
        /// The id that both have.
        domain: DomainId,
        /// The table that was to be attached.
        root: PhysPage,
    },
    /// It did not answer an invalidation once, and has not been let back in since.
    #[error("device {device} is fenced since it did not answer an invalidation")]
    Fenced { device: SourceId },
    /// The translator has no such device.
    #[error("device {device} is not one that the host gave us")]
    Unknown { device: SourceId },
    /// The kernel that holds the tables refused.
    #[error("device {device}: the host refused (error number {errno})")]
    Host {
        device: SourceId,
        /// The kernel's error number.
        errno: i32,
    },
    /// The device's old translations may still be cached.
    #[error("device {device}: {cause}")]
    Invalidate {
        device: SourceId,
        /// Why the invalidation failed.
        cause: InvalidateError,
    },
}
