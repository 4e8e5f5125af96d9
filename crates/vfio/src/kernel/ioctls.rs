// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The numbers of the calls, and the one way to make them.
//!
//! VFIO and iommufd encode neither size nor direction in their numbers: all are `_IO(';', n)`
//! (`include/uapi/linux/vfio.h`, `include/uapi/linux/iommufd.h`). The bindings leave such macros
//! out, so the numbers are here.

use super::Errno;
use rustix::{
    fd::BorrowedFd,
    io,
    ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode},
};
use std::ffi::c_void;
use vfio_bindings::bindings::vfio::{VFIO_BASE, VFIO_TYPE};

/// The number of a call of VFIO: the `nth` from its base.
pub(super) const fn vfio(nth: u8) -> Opcode {
    opcode::none(VFIO_TYPE, VFIO_BASE as u8 + nth)
}
/// The number of a call of iommufd, from the bindings' list.
pub(super) const fn iommufd(command: u32) -> Opcode {
    opcode::none(iommufd_bindings::IOMMUFD_TYPE, command as u8)
}

pub(super) const GET_API_VERSION: Opcode = vfio(0);
pub(super) const CHECK_EXTENSION: Opcode = vfio(1);
pub(super) const SET_IOMMU: Opcode = vfio(2);
pub(super) const GROUP_GET_STATUS: Opcode = vfio(3);
pub(super) const GROUP_SET_CONTAINER: Opcode = vfio(4);
pub(super) const GROUP_GET_DEVICE_FD: Opcode = vfio(6);
pub(super) const DEVICE_GET_INFO: Opcode = vfio(7);
pub(super) const DEVICE_GET_REGION_INFO: Opcode = vfio(8);
pub(super) const DEVICE_GET_IRQ_INFO: Opcode = vfio(9);
pub(super) const DEVICE_SET_IRQS: Opcode = vfio(10);
pub(super) const DEVICE_RESET: Opcode = vfio(11);
pub(super) const IOMMU_GET_INFO: Opcode = vfio(12);
pub(super) const IOMMU_MAP_DMA: Opcode = vfio(13);
pub(super) const IOMMU_UNMAP_DMA: Opcode = vfio(14);
pub(super) const DEVICE_BIND_IOMMUFD: Opcode = vfio(18);
pub(super) const DEVICE_ATTACH_IOMMUFD_PT: Opcode = vfio(19);
pub(super) const DEVICE_DETACH_IOMMUFD_PT: Opcode = vfio(20);

/// One call: its number and its argument.
struct Call(Opcode, *mut c_void);

// SAFETY: number and argument are passed on as they are; that they fit each other is the duty of
// the code that calls `call`.
unsafe impl Ioctl for Call {
    type Output = i32;
    const IS_MUTATING: bool = true;
    fn opcode(&self) -> Opcode {
        self.0
    }
    fn as_ptr(&mut self) -> *mut c_void {
        self.1
    }
    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> io::Result<i32> {
        Ok(out)
    }
}

/// Makes the call, again where a signal ended it.
///
/// # Safety
/// `argument` is what the file of `fd` expects of that call: a number, or a pointer to a structure
/// that may be read and written, with as many bytes behind it as the structure says itself.
pub(super) unsafe fn call(
    fd: BorrowedFd<'_>,
    number: Opcode,
    argument: *mut c_void,
) -> Result<i32, Errno> {
    loop {
        // SAFETY: the caller's.
        match unsafe { ioctl(fd, Call(number, argument)) } {
            Err(io::Errno::INTR) => {}
            result => return result.map_err(Errno::from),
        }
    }
}
