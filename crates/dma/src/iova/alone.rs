// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! An allocator on its own: page numbers behind which no table stands.
//!
//! # Theory
//!
//! An allocation comes back as `Flushed<IovaAlloc>` because translation caches may hold its pages.
//! Where a number never leaves as an [`IovaAlloc`], no code can have written leaves by the right of
//! it, so there is nothing to flush: [`Number`] is that, and [`Alone`] keeps its allocator to
//! itself, so that the two ways cannot be mixed. It is how an allocator's own cost is measured, and
//! how it may serve as an allocator of any other numbers.

use super::*;

/// An allocator of numbers that no table translates.
pub struct Alone<P: Platform>(AnyAllocator<P>);

/// A range of an [`Alone`]. Not an allocation: no right to write leaves comes with it.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped number leaks its range"]
pub struct Number(IovaAlloc);

impl Number {
    /// The pages that it stands for.
    pub fn range(&self) -> IovaRange {
        self.0.range()
    }
}

impl<P: Platform> Alone<P> {
    /// An allocator over `aperture`.
    ///
    /// # Errors
    /// [`AllocatorError`], where the design cannot work there.
    pub fn new(
        p: &P,
        config: AllocatorConfig,
        aperture: IovaRange,
    ) -> Result<Self, AllocatorError> {
        Ok(Alone(AnyAllocator::new(p, config, aperture)?))
    }
    /// A range for `pages`, if this CPU has one cached: see [`AnyAllocator::alloc_fast`].
    #[inline]
    pub fn alloc_fast(&self, p: &P, pages: PageCount) -> Option<Number> {
        self.0.alloc_fast(p, pages).map(Number)
    }
    /// A range within the request's limits: see [`IovaAllocator::alloc`].
    ///
    /// # Errors
    /// [`AllocError`], where no free range serves.
    #[inline]
    pub fn alloc(&self, p: &P, request: &Request) -> Result<Number, AllocError> {
        self.0.alloc(p, request).map(Number)
    }
    /// Takes a range back, to the caches of CPU `origin`. Nothing is to be flushed.
    #[inline]
    pub fn free(&self, p: &P, origin: CpuIndex, number: Number) {
        self.0.free(p, origin, Flushed::untranslated(number.0));
    }
    /// Where the pages are.
    pub fn usage(&self, p: &P) -> Usage {
        self.0.usage(p)
    }
    /// Checks every internal invariant.
    ///
    /// # Errors
    /// A sentence that names the first invariant that does not hold.
    pub fn audit(&self, p: &P) -> Result<(), alloc::string::String> {
        self.0.audit(p)
    }
    /// The magazines, if the design has any.
    pub fn magazines(&self) -> Option<&Magazines<P>> {
        match &self.0 {
            AnyAllocator::Magazine(magazines) => Some(magazines),
            _ => None,
        }
    }
}
