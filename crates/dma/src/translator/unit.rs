// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A remapping unit.

use super::AttachError;
use crate::{
    invalidation::{Invalidate, InvalidateError},
    platform::*,
    table::TableShape,
    units::*,
};
use alloc::sync::Arc;

/// A remapping unit, as a domain with tables of its own needs it.
///
/// # Safety
/// Besides what [`Invalidate`] demands: a device reaches memory by the table that it was attached
/// to, as that is (with what is cached of it), from [`attach`](Self::attach) to
/// [`detach`](Self::detach), and not at all before and after, whatever else the unit is used for
/// meanwhile. An id that [`domain_id`](Self::domain_id) gives tags nothing in any cache, and is
/// given again only when it was released. The unit walks what it says by [`walks`](Self::walks), with
/// leaves up to [`largest_leaf`](Self::largest_leaf), and needs no more than
/// [`on_map`](Self::on_map) says before it sees what was installed. Nothing checks it at run time; over the software unit the
/// oracle does (P4, P8, P14).
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
    /// What must follow the installation of translations.
    fn on_map(&self) -> OnMap {
        OnMap::Nothing
    }
    /// Makes what was written to tables visible to a unit with write buffers.
    ///
    /// # Errors
    /// The unit did not do it.
    fn flush_write_buffers(&self, _p: &P) -> Result<(), InvalidateError> {
        Ok(())
    }
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
    fn on_map(&self) -> OnMap {
        (**self).on_map()
    }
    fn flush_write_buffers(&self, p: &P) -> Result<(), InvalidateError> {
        (**self).flush_write_buffers(p)
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

/// What must happen between the stores of a map and its return: one row each
/// of the invalidation rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnMap {
    /// The unit sees memory, and caches no absent entry.
    #[default]
    Nothing,
    /// It has write buffers of its own (VT-d 4.1 §6.8, RWBF).
    FlushWriteBuffers,
    /// It caches absent entries (VT-d 4.1 §6.1, caching mode).
    Invalidate,
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
