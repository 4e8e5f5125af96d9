// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a device may reach, and what vouches for it.
//!
//! A device writes where its driver told it to, whatever a program's types say of that memory. So
//! the DMA API maps no bare addresses: it maps what implements [`DmaBuffer`], whose author has
//! promised that nothing else lives there. Memory that is named by its addresses is lent by
//! [`Lent::new`], with the same promise for one mapping. Either way the one `unsafe` is where
//! memory comes from, and drivers above have none.

use crate::units::PhysRange;
use core::ops::Deref;

/// Memory that a device may reach.
///
/// # Safety
/// While it is mapped, and where the domain defers invalidations until the flush that follows its
/// unmap, the device reads and writes these bytes whenever it likes, and so do CPUs that copy for
/// it. So for as long as the value lives
///
/// * what [`segments`](Self::segments) names is memory that the value owns: nothing else reads it,
///   writes it, frees it or counts on what it holds, but by accesses that tolerate such writes
///   (volatile, or atomic); above all no Rust reference leads there;
/// * it names the same each time, also after the value was moved.
///
/// A value that was forgotten lives for ever. One that is dropped behind a deferred unmap keeps
/// its memory from becoming anything else until that flush, or tolerates writes until then.
#[allow(unsafe_code)]
pub unsafe trait DmaBuffer {
    /// Where the bytes are, in order; not empty where it is to be mapped.
    fn segments(&self) -> &[PhysRange];
}

/// Memory that is named by its addresses, one buffer or a list, for one mapping: it goes into the
/// mapping, and comes back from its unmap.
#[derive(PartialEq, Eq, Debug)]
pub struct Lent<L = PhysRange>(L);

impl<L> Lent<L> {
    /// Lends what `list` names.
    ///
    /// ```
    /// # use ioatlas_dma::{dma_api::*, units::*};
    /// # let frame = PhysPage(7);
    /// // SAFETY: the frame is this driver's, which frees it after the unmap, and only the device
    /// // and volatile accesses reach it until then.
    /// let buffer = unsafe { Lent::new(PhysRange::page(frame)) };
    /// ```
    ///
    /// It takes a promise:
    ///
    /// ```compile_fail,E0133
    /// # use ioatlas_dma::{dma_api::*, units::*};
    /// # let frame = PhysPage(7);
    /// let buffer = Lent::new(PhysRange::page(frame));
    /// ```
    ///
    /// # Safety
    /// That of [`DmaBuffer`], until it is [taken back](Self::into_inner), or dropped.
    #[allow(unsafe_code)] // a promise of its caller's
    #[inline]
    pub const unsafe fn new(list: L) -> Self {
        Lent(list)
    }

    /// Memory that the DMA API has allocated itself.
    pub(super) fn ours(list: L) -> Self {
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

// SAFETY: what lent it has promised that.
#[allow(unsafe_code)]
unsafe impl<L: AsRef<[PhysRange]>> DmaBuffer for Lent<L> {
    #[inline(always)] // on the fast path of a bounced map
    fn segments(&self) -> &[PhysRange] {
        self.0.as_ref()
    }
}
