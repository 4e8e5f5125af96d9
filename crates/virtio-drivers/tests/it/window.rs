// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Memory that is in a row for the CPU and not for devices, as a kernel's `vmalloc`: a file that is
//! mapped twice, once as it is (its physical addresses), once with its pages in another order.

use ioatlas_dma::units::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

const PAGE: usize = GRANULE as usize;

/// Two views of the same pages.
pub struct Window {
    /// As devices see it.
    linear: *mut c_void,
    /// As the CPU does.
    window: *mut c_void,
    /// Which page of `linear` each page of the window is.
    order: Vec<usize>,
}

impl Window {
    /// As many pages as `order` has, in that order.
    pub fn new(order: &[usize]) -> Self {
        let len = order.len() * PAGE;
        let file = memfd_create("window", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len as u64).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses places where nothing is; each page of the window then
        // replaces one that was reserved for it.
        let (linear, window) = unsafe {
            let linear = mmap(null_mut(), len, access, MapFlags::SHARED, &file, 0).unwrap();
            let window = mmap_anonymous(null_mut(), len, access, MapFlags::PRIVATE).unwrap();
            for (nth, page) in order.iter().enumerate() {
                let at = window.wrapping_byte_add(nth * PAGE);
                let flags = MapFlags::SHARED | MapFlags::FIXED;
                mmap(at, PAGE, access, flags, &file, (page * PAGE) as u64).unwrap();
            }
            (linear, window)
        };
        linear.expose_provenance();
        let order = order.to_vec();
        Window {
            linear,
            window,
            order,
        }
    }

    /// What translates pointers, those into the window as it lies, others by `phys`.
    pub fn phys(
        &self,
        phys: impl Fn(NonNull<u8>) -> PhysAddr + Send + Sync + 'static,
    ) -> impl Fn(NonNull<u8>) -> PhysAddr + Send + Sync + 'static {
        let (linear, window) = (self.linear.addr(), self.window.addr());
        let order = self.order.clone();
        move |at| match at.addr().get().checked_sub(window) {
            Some(inside) if inside < order.len() * PAGE => {
                let page = linear + order[inside / PAGE] * PAGE;
                PhysAddr((page + inside % PAGE) as u64)
            }
            _ => phys(at),
        }
    }

    /// All of it, as the CPU sees it.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes are mapped for as long as the window lives, and the other view is
        // used by the device only, while this one is lent to it.
        unsafe { std::slice::from_raw_parts_mut(self.window.cast(), self.order.len() * PAGE) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let len = self.order.len() * PAGE;
        for at in [self.linear, self.window] {
            // SAFETY: it was mapped by `new`, and nothing has a reference to it.
            unsafe { munmap(at, len).unwrap() };
        }
    }
}
