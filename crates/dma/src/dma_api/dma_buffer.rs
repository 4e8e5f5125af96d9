// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a device may reach, and what vouches for it.
//!
//! A device writes where its driver told it to, whatever a program's types say of that memory. So
//! the DMA API maps no bare addresses: it maps what implements [`DmaBuffer`], whose author has
//! promised that nothing else lives there. Memory that is named by its addresses is lent by
//! [`Lent::new`], with the same promise for one mapping. Either way the one `unsafe` is where
//! memory comes from, and drivers above have none.

use crate::{domain::Lent, units::PhysRange};

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

// SAFETY: what lent it has promised that.
#[allow(unsafe_code)]
unsafe impl<L: AsRef<[PhysRange]>> DmaBuffer for Lent<L> {
    #[inline(always)] // on the fast path of a bounced map
    fn segments(&self) -> &[PhysRange] {
        (**self).as_ref()
    }
}
