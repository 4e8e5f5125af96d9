// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A unit that caches nothing: every access walks the tables, so an invalidation is done when it is
//! asked for.
//!
//! It is what a software walker is, and what to measure the CPU's share of map and unmap with.

use super::{AttachError, RemappingUnit};
use crate::{
    invalidation::{Invalidate, InvalidateError, Scope},
    platform::{
        room::{Larger, with_room},
        *,
    },
    table::TableShape,
    units::*,
};
use alloc::{sync::Arc, vec::Vec};

/// No translation caches. Remembers which device uses which tables.
pub struct Uncached<P: Platform> {
    state: P::Lock<State>,
}

struct State {
    attached: Vec<(SourceId, DomainId, PhysPage)>,
    free_ids: Vec<DomainId>,
    next_id: u16,
}

impl<P: Platform> Uncached<P> {
    /// A unit to which nothing is attached.
    pub fn new() -> Self {
        Uncached {
            state: Lock::new(State {
                attached: Vec::new(),
                free_ids: Vec::new(),
                next_id: 1,
            }),
        }
    }
    /// The root table that `device` uses.
    pub fn root_of(&self, device: SourceId) -> Option<PhysPage> {
        self.state.with(|s| {
            let entry = s.attached.iter().find(|(source, ..)| *source == device);
            entry.map(|(_, _, root)| *root)
        })
    }
}

impl<P: Platform> Default for Uncached<P> {
    fn default() -> Self {
        Self::new()
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: there is no cache.
unsafe impl<P: Platform> Invalidate for Uncached<P> {
    fn on_map(&self) -> crate::invalidation::OnMap {
        crate::invalidation::OnMap::Nothing
    }
    type Token = ();
    #[inline]
    fn submit(&self, _domain: DomainId, _scope: Scope) -> Result<(), InvalidateError> {
        Ok(())
    }
    #[inline]
    fn done(&self, _token: ()) -> Result<bool, InvalidateError> {
        Ok(true)
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: a walker asks for the root at each access; an id is in the list of free ones or was
// never given.
unsafe impl<P: Platform> RemappingUnit<P> for Uncached<P> {
    fn attach(
        &self,
        _: Authority,
        _p: &P,
        device: SourceId,
        domain: DomainId,
        root: PhysPage,
        _levels: u32,
    ) -> Result<(), AttachError> {
        let attached = with_room(
            &self.state,
            |s| &mut s.attached,
            |s| {
                if let Some((_, at, _)) = s.attached.iter().find(|(source, ..)| *source == device) {
                    let domain = *at;
                    return Ok(Err(AttachError::Attached { device, domain }));
                }
                if let Some(short) = Larger::of(&s.attached, s.attached.len() + 1) {
                    return Err(short);
                }
                s.attached.push((device, domain, root));
                Ok(Ok(()))
            },
        );
        attached.unwrap_or(Err(AttachError::NoMemory { device }))
    }
    fn detach(
        &self,
        _: Authority,
        _p: &P,
        device: SourceId,
        domain: DomainId,
    ) -> Result<(), AttachError> {
        self.state.with(|s| {
            let at = s
                .attached
                .iter()
                .position(|e| (e.0, e.1) == (device, domain));
            let at = at.ok_or(AttachError::NotAttached { device, domain })?;
            s.attached.swap_remove(at);
            Ok(())
        })
    }
    fn platform(&self) -> Option<&Arc<P>> {
        None
    }
    /// Any: who walks them by [`root_of`](Uncached::root_of) made them, and knows their format.
    fn walks(&self, _: TableShape) -> bool {
        true
    }
    /// Any: software that reads the tables decodes all that there is.
    fn largest_leaf(&self) -> u32 {
        u32::MAX
    }
    fn domain_id(&self, _p: &P) -> Option<DomainId> {
        let given = with_room(
            &self.state,
            |s| &mut s.free_ids,
            |s| {
                if let Some(id) = s.free_ids.pop() {
                    return Ok(Some(id));
                }
                // so that there is room for it when it is released
                if let Some(short) = Larger::of(&s.free_ids, usize::from(s.next_id)) {
                    return Err(short);
                }
                let id = DomainId(s.next_id);
                let next = s.next_id.checked_add(1);
                s.next_id = next.unwrap_or(s.next_id);
                Ok(next.map(|_| id))
            },
        );
        given.ok().flatten()
    }
    fn release_domain_id(&self, _: Authority, _p: &P, id: DomainId) {
        self.state.with(|s| s.free_ids.push(id));
    }
}
