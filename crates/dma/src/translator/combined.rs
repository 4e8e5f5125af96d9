// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A unit behind one that combines requests: all but invalidations is its own.
#![allow(unsafe_code)] // a promise

use super::*;
use crate::{invalidation::Combining, table::TableShape};

// SAFETY: the one inside does.
unsafe impl<P: Platform, U: RemappingUnit<P>> RemappingUnit<P> for Combining<P, U> {
    fn attach(
        &self,
        by: Authority,
        p: &P,
        device: SourceId,
        domain: DomainId,
        root: PhysPage,
        levels: u32,
    ) -> Result<(), AttachError> {
        self.unit().attach(by, p, device, domain, root, levels)
    }
    fn detach(
        &self,
        by: Authority,
        p: &P,
        device: SourceId,
        domain: DomainId,
    ) -> Result<(), AttachError> {
        self.unit().detach(by, p, device, domain)
    }
    fn platform(&self) -> Option<&Arc<P>> {
        self.unit().platform()
    }
    fn walks(&self, shape: TableShape) -> bool {
        self.unit().walks(shape)
    }
    fn largest_leaf(&self) -> u32 {
        self.unit().largest_leaf()
    }
    fn transient_hint(&self) -> TransientHint {
        self.unit().transient_hint()
    }
    fn domain_id(&self, p: &P) -> Option<DomainId> {
        self.unit().domain_id(p)
    }
    fn release_domain_id(&self, by: Authority, p: &P, id: DomainId) {
        self.forget_domain(id);
        self.unit().release_domain_id(by, p, id);
    }
}
