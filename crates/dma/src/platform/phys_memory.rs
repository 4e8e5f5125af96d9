// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Physical memory, as hardware sees it.

use super::{Authority, Platform};
use crate::units::PhysPage;

/// Memory as a remapping unit sees it: by physical page number. Kernels never implement it.
///
/// Page tables are among it, so words are shown to what has an [`Authority`] only:
///
/// ```
/// # use ioatlas_dma::{platform::*, units::*};
/// # use ioatlas_host::*;
/// let host = Host::new(HostConfig::default().frames(1));
/// // SAFETY: nothing else has anything in this arena.
/// let by = unsafe { Authority::assume() };
/// assert!(host.word(by, PhysPage(0), 511).is_some());
/// ```
///
/// ```compile_fail,E0061
/// # use ioatlas_dma::{platform::*, units::*};
/// # use ioatlas_host::*;
/// let host = Host::new(HostConfig::default().frames(1));
/// assert!(host.word(PhysPage(0), 511).is_some());
/// ```
pub trait PhysMemory<P: Platform>: Send + Sync + 'static {
    /// Word `index` (0 to 511) of physical page `page`, or `None` where there is no memory.
    fn word(&self, by: Authority, page: PhysPage, index: usize) -> Option<&P::A64>;
}
