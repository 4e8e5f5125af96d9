// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! As a unit: requests by rounds where they can be combined and are waited for, and all else handed
//! on.
#![allow(unsafe_code)] // promises

use super::*;

// SAFETY: "done" is the unit's, of a round that was submitted after the request, with its pages and
// at least its caches; or of the request itself. See the theory of the module.
unsafe impl<P: Platform, U: Invalidate> Invalidate for Combining<P, U> {
    type Token = CombinedToken<U::Token>;

    fn submit(&self, domain: DomainId, scope: Scope) -> Result<Self::Token, InvalidateError> {
        let combined = scope
            .pages
            .and_then(|pages| self.join(domain, pages, scope.caches));
        match combined {
            Some(asked) => Ok(CombinedToken(asked)),
            None => Ok(CombinedToken(Asked::Unit(self.unit.submit(domain, scope)?))),
        }
    }
    fn submit_ranges(
        &self,
        domain: DomainId,
        ranges: &[IovaRange],
        caches: Caches,
    ) -> Result<Self::Token, InvalidateError> {
        if let [pages] = ranges
            && let Some(asked) = self.join(domain, *pages, caches)
        {
            return Ok(CombinedToken(asked));
        }
        let token = self.unit.submit_ranges(domain, ranges, caches)?;
        Ok(CombinedToken(Asked::Unit(token)))
    }
    fn submit_unattended(
        &self,
        domain: DomainId,
        scope: Scope,
    ) -> Result<Self::Token, InvalidateError> {
        let token = self.unit.submit_unattended(domain, scope)?;
        Ok(CombinedToken(Asked::Unit(token)))
    }
    fn submit_ranges_unattended(
        &self,
        domain: DomainId,
        ranges: &[IovaRange],
        caches: Caches,
    ) -> Result<Self::Token, InvalidateError> {
        let unit = &self.unit;
        let token = unit.submit_ranges_unattended(domain, ranges, caches)?;
        Ok(CombinedToken(Asked::Unit(token)))
    }
    fn done(&self, token: Self::Token) -> Result<bool, InvalidateError> {
        match token.0 {
            Asked::Unit(token) => self.unit.done(token),
            Asked::Round { number, nth } => self.look(number, nth),
        }
    }
    #[inline]
    fn on_map(&self) -> OnMap {
        self.unit.on_map()
    }
    fn flush_write_buffers(&self) -> Result<(), InvalidateError> {
        self.unit.flush_write_buffers()
    }
}
