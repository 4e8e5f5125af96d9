// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A remapping unit.

use super::AttachError;
use crate::{invalidation::Invalidate, platform::*, table::TableShape, units::*};
use alloc::sync::Arc;

/// A remapping unit, as a domain with tables of its own needs it.
///
/// # Safety
/// Besides what [`Invalidate`] demands: a device reaches memory by the table that it was attached
/// to, as that is (with what is cached of it), from [`attach`](Self::attach) to
/// [`detach`](Self::detach), and not at all before and after, whatever else the unit is used for
/// meanwhile. When [`attach`](Self::attach) fails nothing leads to the table nor ever will, but
/// where an invalidation failed ([`AttachError::Invalidate`]): then the device is blocked, and stays
/// attached until a [`detach`](Self::detach) succeeds, which may be tried again as often as it
/// fails. Of a device that is attached elsewhere the first is refused. An id that [`domain_id`](Self::domain_id) gives tags nothing in any cache, and is
/// given again only when it was released. The unit walks what it says by [`walks`](Self::walks),
/// with leaves up to [`largest_leaf`](Self::largest_leaf). Nothing checks it at run time; over the
/// software unit the oracle does (P4, P8, P14).
#[allow(unsafe_code)]
pub unsafe trait RemappingUnit<P: Platform>: Invalidate + 'static {
    /// Points `device` at the table with `root`, tagged `domain`, and makes sure that no older
    /// entry for it is cached.
    ///
    /// # Errors
    /// See [`AttachError`]; after a failed invalidation the device is blocked.
    fn attach(
        &self,
        by: Authority,
        p: &P,
        device: SourceId,
        domain: DomainId,
        root: PhysPage,
        levels: u32,
    ) -> Result<(), AttachError>;
    /// Blocks `device`, and flushes what was cached for it.
    ///
    /// # Errors
    /// The device was not attached, or the invalidation failed.
    fn detach(
        &self,
        by: Authority,
        p: &P,
        device: SourceId,
        domain: DomainId,
    ) -> Result<(), AttachError>;
    /// The platform whose memory it walks; `None` where it walks what it is handed.
    fn platform(&self) -> Option<&Arc<P>>;
    /// Whether it walks such tables. A device that is attached to others would be translated by
    /// what is no entry.
    fn walks(&self, shape: TableShape) -> bool;
    /// The largest leaf that the unit walks, as a level: 1 is 4 KiB.
    fn largest_leaf(&self) -> u32 {
        1
    }
    /// What the unit makes of a leaf that is marked as transient (VT-d 4.1 §9.8, TM).
    fn transient_hint(&self) -> TransientHint {
        TransientHint::Reserved
    }
    /// A domain id that no cache holds entries of, or `None` when all are taken.
    fn domain_id(&self, p: &P) -> Option<DomainId>;
    /// Gives it back. The caller has flushed the domain since its last translation was removed.
    fn release_domain_id(&self, by: Authority, p: &P, id: DomainId);
}

#[allow(unsafe_code)] // a promise
// SAFETY: the one inside does.
unsafe impl<P: Platform, U: RemappingUnit<P>> RemappingUnit<P> for Arc<U> {
    fn attach(
        &self,
        by: Authority,
        p: &P,
        device: SourceId,
        domain: DomainId,
        root: PhysPage,
        levels: u32,
    ) -> Result<(), AttachError> {
        (**self).attach(by, p, device, domain, root, levels)
    }
    fn detach(
        &self,
        by: Authority,
        p: &P,
        device: SourceId,
        domain: DomainId,
    ) -> Result<(), AttachError> {
        (**self).detach(by, p, device, domain)
    }
    fn platform(&self) -> Option<&Arc<P>> {
        (**self).platform()
    }
    fn walks(&self, shape: TableShape) -> bool {
        (**self).walks(shape)
    }
    fn largest_leaf(&self) -> u32 {
        (**self).largest_leaf()
    }
    fn transient_hint(&self) -> TransientHint {
        (**self).transient_hint()
    }
    fn domain_id(&self, p: &P) -> Option<DomainId> {
        (**self).domain_id(p)
    }
    fn release_domain_id(&self, by: Authority, p: &P, id: DomainId) {
        (**self).release_domain_id(by, p, id)
    }
}

/// What a unit makes of the bit by which a leaf says that it will not be used for long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TransientHint {
    /// It is reserved: a leaf with it faults.
    #[default]
    Reserved,
    /// It evicts such translations early.
    Honoured,
}
