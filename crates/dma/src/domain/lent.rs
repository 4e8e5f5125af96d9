// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a domain may let devices have.
//!
//! A device writes where its driver told it to, whatever a program's types say of that memory. So
//! what is mapped is vouched for: by an unsafe call for this one mapping ([`Lent`]), by an unsafe
//! trait of what owns it ([`Lend`], and [`DmaBuffer`](crate::dma_api::DmaBuffer) for the DMA API,
//! which keeps the owner meanwhile), or by the platform for all that there is
//! ([`DedicatedMemory`]).

use crate::{platform::DedicatedMemory, units::PhysRange};
use core::ops::Deref;

/// Memory that is named by its addresses, one buffer or a list, for one mapping. What the DMA API
/// maps comes back from its unmap.
#[derive(PartialEq, Eq, Debug)]
pub struct Lent<L = PhysRange>(L);

impl<L> Lent<L> {
    /// Lends what `list` names.
    ///
    /// ```
    /// # use ioatlas_dma::{domain::*, units::*};
    /// # let frame = PhysPage(7);
    /// // SAFETY: the frame is this driver's, which frees it after the unmap, and only the device
    /// // and volatile accesses reach it until then.
    /// let buffer = unsafe { Lent::new(PhysRange::page(frame)) };
    /// ```
    ///
    /// It takes a promise:
    ///
    /// ```compile_fail,E0133
    /// # use ioatlas_dma::{domain::*, units::*};
    /// # let frame = PhysPage(7);
    /// let buffer = Lent::new(PhysRange::page(frame));
    /// ```
    ///
    /// # Safety
    /// The device reads and writes these bytes whenever it likes, and so do CPUs that copy for it:
    /// until this is [taken back](Self::into_inner) or dropped, or, where a domain was given it,
    /// until the mapping is unmapped; where the domain defers invalidations, until the flush that
    /// follows; and for ever where an error says that an invalidation failed. Meanwhile nothing
    /// else reads them, writes them, frees them or counts on what they hold, but by accesses that
    /// tolerate such writes (volatile, or atomic); above all no Rust reference leads there.
    #[allow(unsafe_code)] // a promise of its caller's
    #[inline]
    pub const unsafe fn new(list: L) -> Self {
        Lent(list)
    }

    /// Memory that the core has allocated itself, or that was vouched for before.
    pub(crate) fn ours(list: L) -> Self {
        Lent(list)
    }

    /// The list again. The loan is over, where the domain defers invalidations with the next flush.
    #[inline]
    pub fn into_inner(self) -> L {
        self.0
    }
}

impl<L> Deref for Lent<L> {
    type Target = L;
    #[inline]
    fn deref(&self) -> &L {
        &self.0
    }
}

/// What a domain over the platform `P` maps: `L` is one [`PhysRange`], or a `&[PhysRange]`.
///
/// Addresses are, where the platform says that devices may have all of its memory:
///
/// ```
/// # use ioatlas_dma::{domain::*, platform::*, translator::Translator, units::*};
/// fn map<P: DedicatedMemory, T: Translator<P>>(of: &Domain<P, T>) -> Result<Mapping, MapError> {
///     of.map(PhysRange::page(PhysPage(7)), Direction::ToDevice)
/// }
/// ```
///
/// In a kernel they are not:
///
/// ```compile_fail,E0277
/// # use ioatlas_dma::{domain::*, platform::*, translator::Translator, units::*};
/// fn map<P: Platform, T: Translator<P>>(of: &Domain<P, T>) -> Result<Mapping, MapError> {
///     of.map(PhysRange::page(PhysPage(7)), Direction::ToDevice)
/// }
/// ```
///
/// # Safety
/// On `P`, what [`lend`](Self::lend) names keeps the promise of [`Lent::new`], from the call on.
#[allow(unsafe_code)]
pub unsafe trait Lend<P, L> {
    /// Its addresses.
    fn lend(self) -> L;
}

#[allow(unsafe_code)] // a promise
// SAFETY: what lent it has promised that.
unsafe impl<P, L> Lend<P, L> for Lent<L> {
    #[inline(always)] // on the fast path of a map
    fn lend(self) -> L {
        self.0
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: the platform has promised that of all memory.
unsafe impl<P: DedicatedMemory> Lend<P, PhysRange> for PhysRange {
    #[inline(always)] // on the fast path of a map
    fn lend(self) -> PhysRange {
        self
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: the platform has promised that of all memory.
unsafe impl<'l, P: DedicatedMemory, A: AsRef<[PhysRange]> + ?Sized> Lend<P, &'l [PhysRange]>
    for &'l A
{
    #[inline]
    fn lend(self) -> &'l [PhysRange] {
        self.as_ref()
    }
}
