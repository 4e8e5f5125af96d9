// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Page colouring between the domains of one unit (WIOSCA'10 §4.2).
//!
//! # Theory
//!
//! Drivers allocate their rings first, and allocators begin at the end of an aperture; so the pages
//! that each device uses most have the same numbers in every domain. Where an IOTLB chooses the set
//! by the number alone, they evict each other. [`Colours`] is shared by the domains of a unit and
//! tells each how far from the end to begin: an [`Offset`].
//!
//! `fixed`: the domain takes the first number k that the fewest living domains have, and begins k
//! times the fixed pages further. So no two share a colour before all are taken: there are 2^16 /
//! pages of them, [`COLOURS_MAX`] at most. `coherent`: it begins as many pages further as were ever
//! allocated of consistent memory in the domains that share the object. What is granted is a power
//! of two of pages, naturally aligned: for 2^n pages, 2^(n+1) - 1 count, since up to 2^n - 1 are
//! left out above.
//!
//! Offsets are taken modulo 2^16 pages: an IOTLB with no more sets than that sees the same, and
//! little of the aperture is lost.
//!
//! Exact where a design allocates in order: from the top (`rbtree`, `eiovar`, `vmem`) or the bottom
//! (`freebsd`). `macos` hands out aligned blocks, the smallest first: there the fixed pages should
//! be a power of two, and as many less one, taken page by page, have a colour of their own.
//! Magazines take runs, aligned, that double: of 64 fixed pages one CPU gets 56 single ones before
//! it meets the next colour; and runs of several sizes may leave so much out that `coherent` is too
//! little.

use super::Offset;
use crate::{platform::*, units::PageCount};
use alloc::sync::Arc;

/// Colours of `fixed` are no more than these.
pub const COLOURS_MAX: usize = 256;
/// What offsets are taken modulo.
pub const COLOUR_SPAN: PageCount = PageCount(1 << 16);

/// What the domains of a unit know of each other to begin at different pages.
/// See the module's theory.
pub struct Colours<P: Platform>(P::Lock<State>);

struct State {
    /// How many living domains have each number.
    domains: [u32; COLOURS_MAX],
    /// Pages of consistent memory ever allocated, modulo [`COLOUR_SPAN`]; gaps
    /// of alignment are included.
    consistent: u64,
}

impl<P: Platform> Colours<P> {
    /// For the domains of one unit, of which there is none yet.
    pub fn new() -> Self {
        Colours(Lock::new(State {
            domains: [0; COLOURS_MAX],
            consistent: 0,
        }))
    }

    fn number(&self, colours: usize) -> usize {
        self.0.with(|state| {
            let mut all = state.domains[..colours].iter().enumerate();
            let fewest = all.clone().map(|(_, n)| *n).min().unwrap_or(0);
            let first = all.find(|(_, n)| **n == fewest).map_or(0, |(k, _)| k);
            state.domains[first] += 1;
            first
        })
    }
}

impl<P: Platform> Default for Colours<P> {
    fn default() -> Self {
        Self::new()
    }
}

/// What one domain has of them, until it ends.
pub(super) struct Colour<P: Platform> {
    shared: Option<Arc<Colours<P>>>,
    number: Option<usize>,
    /// How far from the end to begin.
    pub offset: PageCount,
}

impl<P: Platform> Colour<P> {
    pub fn new(shared: Option<Arc<Colours<P>>>, offset: Offset) -> Self {
        let (mut number, mut pages) = (None, 0);
        if let Some(shared) = &shared {
            match offset {
                Offset::None | Offset::Fixed(PageCount(0)) => {}
                Offset::Fixed(each) => {
                    let colours = (COLOUR_SPAN.0 / each.0).clamp(1, COLOURS_MAX as u64);
                    let k = shared.number(colours as usize);
                    number = Some(k);
                    pages = k as u64 * each.0;
                }
                Offset::Coherent => {
                    pages = shared.0.with(|state| state.consistent);
                }
            }
        }
        Colour {
            shared,
            number,
            offset: PageCount(pages),
        }
    }

    /// Counts consistent memory that was allocated, of so many pages as granted.
    pub fn allocated(&self, granted: PageCount) {
        let pages = granted.0.saturating_mul(2) - 1;
        if let Some(shared) = &self.shared {
            shared.0.with(|state| {
                state.consistent = state.consistent.wrapping_add(pages) % COLOUR_SPAN.0;
            });
        }
    }
}

impl<P: Platform> Drop for Colour<P> {
    fn drop(&mut self) {
        if let (Some(shared), Some(number)) = (&self.shared, self.number) {
            shared.0.with(|state| state.domains[number] -= 1);
        }
    }
}
