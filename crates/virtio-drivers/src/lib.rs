// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#![doc = include_str!("../README.md")]
//!
//! # Theory
//!
//! virtio-drivers asks its kernel for one trait, [`Hal`](virtio_drivers::Hal), whose functions have
//! no receiver: which device a buffer is for is known by the type alone. So each device has a
//! [`Device`], made of its client of the DMA API and of what only the kernel knows, and
//! [`hal!`](crate::hal) makes a type that leads to it:
//!
//! ```text
//! VirtIOBlk<DiskHal, _>               dma_alloc -> alloc_raw          dma_dealloc -> free_raw
//!   -> DiskHal   (made by hal!)       share     -> map_raw            unshare     -> unmap_raw
//!     -> Device
//!       -> AnyClient                  placement, pools, domain, unit
//! ```
//!
//! What `Hal` calls a physical address is an IOVA then: the device reaches what the driver has
//! shared with it, and nothing else but, where that is mapped directly, the rest of its pages.
//! Rings are mapped for as long as the driver has them, and their frames are freed after the flush,
//! whatever the policy. Where buffers go is decided by the client's
//! [`Placement`](ioatlas_dma::dma_api::Placement).
//!
//! [`Device::share`] and [`Device::unshare`] say where they panic. Bounced always, from a pool of
//! the client's own that has room for all that its driver has in flight
//! ([`Dma::client_with_pool`](ioatlas_dma::dma_api::Dma::client_with_pool)), buffers can be shared
//! for as long as the heap has memory.
//!
//! # Contexts
//!
//! All functions may call the heap, with no lock held. `share` does for a buffer of several
//! segments, and for others while more is shared than ever before; it panics where that has
//! nothing. `dma_alloc` fails then.
#![no_std]

extern crate alloc;

mod device;
mod transport;

pub use device::Device;
pub use transport::{BypassError, Translated};
/// The crate whose drivers run on this one, in the version that fits.
pub use virtio_drivers;

/// Makes a unit struct that is a [`Hal`](virtio_drivers::Hal) by the [`Device`] that a closure
/// without captures returns, as `&'static Device`. It must be the same one at each call: the driver
/// panics where a buffer or a ring is given back to another one.
///
/// A kernel with several devices calls it once for each, and each device has then a domain of its
/// own, or shares one.
///
/// ```
/// use ioatlas_virtio_drivers::{Device, hal};
/// use std::sync::OnceLock;
///
/// static DISK: OnceLock<Device> = OnceLock::new();
/// hal!(pub DiskHal, || DISK.get().expect("the device is made at boot"));
/// # fn is_hal<H: ioatlas_virtio_drivers::virtio_drivers::Hal>() {}
/// # is_hal::<DiskHal>();
/// ```
#[macro_export]
macro_rules! hal {
    ($(#[$attribute:meta])* $visibility:vis $name:ident, $device:expr) => {
        $(#[$attribute])*
        #[derive(Debug)]
        $visibility struct $name;

        impl $name {
            fn device() -> &'static $crate::Device {
                let device: fn() -> &'static $crate::Device = $device;
                device()
            }
        }

        // SAFETY: what `dma_alloc` returns is memory of the device's own, zeroed and aligned to
        // pages; the device lives for ever, and so does the memory until it is deallocated. What
        // else the trait asks for was promised where the device was made.
        unsafe impl $crate::virtio_drivers::Hal for $name {
            fn dma_alloc(
                pages: usize,
                _: $crate::virtio_drivers::BufferDirection,
            ) -> ($crate::virtio_drivers::PhysAddr, ::core::ptr::NonNull<u8>) {
                Self::device().dma_alloc(pages)
            }
            unsafe fn dma_dealloc(
                paddr: $crate::virtio_drivers::PhysAddr,
                vaddr: ::core::ptr::NonNull<u8>,
                pages: usize,
            ) -> i32 {
                // SAFETY: the caller's promise.
                unsafe { Self::device().dma_dealloc(paddr, vaddr, pages) }
            }
            unsafe fn mmio_phys_to_virt(
                paddr: $crate::virtio_drivers::PhysAddr,
                size: usize,
            ) -> ::core::ptr::NonNull<u8> {
                // SAFETY: the caller's promise.
                unsafe { Self::device().mmio_phys_to_virt(paddr, size) }
            }
            unsafe fn share(
                buffer: ::core::ptr::NonNull<[u8]>,
                direction: $crate::virtio_drivers::BufferDirection,
            ) -> $crate::virtio_drivers::PhysAddr {
                // SAFETY: the caller's promise.
                unsafe { Self::device().share(buffer, direction) }
            }
            unsafe fn unshare(
                paddr: $crate::virtio_drivers::PhysAddr,
                buffer: ::core::ptr::NonNull<[u8]>,
                direction: $crate::virtio_drivers::BufferDirection,
            ) {
                // SAFETY: the caller's promise.
                unsafe { Self::device().unshare(paddr, buffer, direction) }
            }
        }
    };
}
