// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! I/O address spaces that a kernel keeps: a type 1 [`Container`], an iommufd's [`Ioas`].
//!
//! A space is opened for its devices, all of them at once, since each may narrow the IOVAs that it
//! has; what it has is asked once they are in, and never assumed. [`Vfio`](crate::translator::Vfio)
//! makes a translator of a space.

mod any;
mod container;
mod ioas;
mod limits;

pub use any::{AnySpace, SpaceKind};
pub use container::Container;
pub use ioas::Ioas;
pub use limits::{APERTURE_BITS_MAX, SpaceLimits};

use crate::{
    device::{Device, DeviceError},
    kernel::{Errno, Kernel, MapCall},
};
use ioatlas_dma::{translator::AttachError, units::*};

/// What a translator needs of a space. Calls may come from several threads at once.
///
/// # Safety
/// A domain frees memory on its word. When [`unmap`](Self::unmap) returns `Ok`, no device reaches
/// anything by the range, in whatever cache; after an error it may have changed nothing. When
/// [`detach`](Self::detach) returns `Ok`, the device reaches nothing of the space.
///
/// ```compile_fail,E0200
/// # use ioatlas_dma::{translator::AttachError, units::*};
/// # use ioatlas_vfio::{kernel::*, space::*};
/// struct Forgets(SpaceLimits);
/// impl AddressSpace for Forgets {
///     fn unmap(&self, _iova: Iova, len: ByteCount) -> Result<ByteCount, Errno> {
///         Ok(len) // and the device goes on
///     }
///     // ..
/// #   fn limits(&self) -> &SpaceLimits { &self.0 }
/// #   fn pin_limit(&self) -> Option<ByteCount> { None }
/// #   unsafe fn map(&self, _call: &MapCall) -> Result<(), Errno> { Ok(()) }
/// #   fn attach(&self, _device: SourceId) -> Result<(), AttachError> { Ok(()) }
/// #   fn detach(&self, _device: SourceId) -> Result<(), AttachError> { Ok(()) }
/// }
/// ```
pub unsafe trait AddressSpace: Send + Sync + 'static {
    /// What IOVAs it has, and how many mappings it takes.
    fn limits(&self) -> &SpaceLimits;
    /// How much memory this process may pin, where there is a limit.
    fn pin_limit(&self) -> Option<ByteCount>;
    /// Makes one mapping, which pins its memory.
    ///
    /// # Errors
    /// The same as of [`Kernel::type1_map`].
    ///
    /// # Safety
    /// The same as of [`Kernel::type1_map`].
    unsafe fn map(&self, call: &MapCall) -> Result<(), Errno>;
    /// Ends all mappings in a range, at whose edges none lies across; returns how much was mapped.
    fn unmap(&self, iova: Iova, len: ByteCount) -> Result<ByteCount, Errno>;
    /// Lets a device reach what is mapped.
    fn attach(&self, device: SourceId) -> Result<(), AttachError>;
    /// Ends that: the device is quiesced.
    fn detach(&self, device: SourceId) -> Result<(), AttachError>;
}

/// The device `source`, if it is one of `devices`.
fn find<K: Kernel>(devices: &[Device<K>], source: SourceId) -> Result<&Device<K>, AttachError> {
    let found = devices
        .iter()
        .find(|device| device.address().source() == source);
    found.ok_or(AttachError::Unknown { device: source })
}

/// What an error of a device is to the code that attaches it.
fn refused(device: SourceId) -> impl Fn(DeviceError) -> AttachError {
    move |error| AttachError::Host {
        device,
        errno: error.errno().unwrap_or(Errno::NODEV).0,
    }
}
