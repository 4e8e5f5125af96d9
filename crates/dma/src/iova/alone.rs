// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! An assigner on its own: page numbers behind which no table stands.
//!
//! # Theory
//!
//! A lease comes back as `Flushed<Lease>` because translation caches may hold its pages. Where a number never leaves as a
//! [`Lease`], nobody can have written leaves by the right of it, so there is nothing to flush: [`Number`] is that, and [`Alone`]
//! keeps its assigner to itself, so that the two roads cannot be mixed. It is how an assigner's own cost is measured, and how it may serve
//! as an allocator of any other numbers.

use super::*;

/// An assigner of numbers that nobody translates.
pub struct Alone<P: Platform>(Assigner<P>);

/// A range of an [`Alone`]. Not a lease: no right to write leaves comes with it.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped number leaks its range"]
pub struct Number(Lease);

impl Number {
    /// The pages.
    pub fn range(&self) -> IovaRange {
        self.0.range()
    }
}

impl<P: Platform> Alone<P> {
    /// An assigner over `aperture`.
    ///
    /// # Errors
    /// As [`Assigner::new`].
    pub fn new(p: &P, config: AssignerConfig, aperture: IovaRange) -> Result<Self, NoAssigner> {
        Ok(Alone(Assigner::new(p, config, aperture)?))
    }
    /// As [`Assigner::assign_at_hand`].
    #[inline]
    pub fn assign_at_hand(&self, p: &P, pages: PageCount) -> Option<Number> {
        self.0.assign_at_hand(p, pages).map(Number)
    }
    /// As [`Assign::assign`].
    ///
    /// # Errors
    /// [`NoIova`].
    #[inline]
    pub fn assign(&self, p: &P, request: &Request) -> Result<Number, NoIova> {
        self.0.assign(p, request).map(Number)
    }
    /// As [`Assign::release`].
    #[inline]
    pub fn release(&self, p: &P, home: CpuIndex, number: Number) {
        self.0.release(p, home, Flushed::untranslated(number.0));
    }
    /// Where the pages are.
    pub fn usage(&self, p: &P) -> Usage {
        self.0.usage(p)
    }
    /// Checks every internal invariant.
    ///
    /// # Errors
    /// As [`Assign::audit`].
    pub fn audit(&self, p: &P) -> Result<(), alloc::string::String> {
        self.0.audit(p)
    }
    /// The magazines, if the design has any.
    pub fn magazines(&self) -> Option<&Magazines<P>> {
        match &self.0 {
            Assigner::Magazine(magazines) => Some(magazines),
            _ => None,
        }
    }
}
