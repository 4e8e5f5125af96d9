// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which devices are behind the IOMMU at all.
//!
//! A device of virtio that does not offer `VIRTIO_F_ACCESS_PLATFORM` (Virtual I/O Device 1.2, §6)
//! uses physical addresses whatever stands before it, as virtual devices did before there were
//! virtual IOMMUs. One that offers it demands that its driver accept it, and may refuse to work
//! otherwise: QEMU's do. The drivers of virtio-drivers do not know the feature, and need not: what
//! it demands is in the `Hal`.

use crate::device::Device;
use core::{fmt, hint::spin_loop};
use virtio_drivers::{PhysAddr, Result, transport::*};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `VIRTIO_F_ACCESS_PLATFORM`.
const ACCESS_PLATFORM: u64 = 1 << 33;

/// A transport whose device uses the addresses of its IOMMU, which it is told of when a driver
/// accepts features. Made by [`Device::transport`].
///
/// Drivers of virtio-drivers leave what their device has still, as the buffers of a receive queue,
/// shared for ever, and free it. So where this is dropped, as the first of a driver's fields, the
/// device is reset, and whatever it has still is unshared: no byte is copied then.
///
/// # Panics
/// Dropping it panics where an invalidation failed, for the device may still reach a buffer; so a
/// program that unwinds already is aborted.
#[derive(Debug)]
pub struct Translated<T: Transport> {
    transport: T,
    device: Device,
}

/// The device uses physical addresses whatever it is given; here its transport is back.
pub struct BypassError<T>(pub T);

impl Device {
    /// The transport of a driver of this device, which leads to `transport`, and tells the device
    /// that its addresses are translated. Where the driver goes it ends all that is shared.
    ///
    /// There is one at a time, since a device has one driver: where a second one is made before the
    /// first is dropped, dropping that resets the device, and ends what the second has shared. No
    /// other device has the client, or a clone of it, for the same reason.
    ///
    /// # Errors
    /// [`BypassError`], where the device does not offer that: no IOVA may be given to it.
    pub fn transport<T: Transport>(
        &self,
        mut transport: T,
    ) -> core::result::Result<Translated<T>, BypassError<T>> {
        let device = self.clone();
        match transport.read_device_features() & ACCESS_PLATFORM {
            0 => Err(BypassError(transport)),
            _ => Ok(Translated { transport, device }),
        }
    }
}

impl<T: Transport> Drop for Translated<T> {
    fn drop(&mut self) {
        self.transport.set_status(DeviceStatus::empty());
        // until then it may write what it has (Virtio 1.2, §4.1.4.3)
        while self.transport.get_status() != DeviceStatus::empty() {
            spin_loop();
        }
        self.device.unshare_all();
    }
}

impl<T> fmt::Display for BypassError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the device does not offer ACCESS_PLATFORM: it bypasses the IOMMU")
    }
}

impl<T> fmt::Debug for BypassError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BypassError").finish_non_exhaustive()
    }
}

impl<T> core::error::Error for BypassError<T> {}

impl<T: Transport> Transport for Translated<T> {
    fn write_driver_features(&mut self, driver_features: u64) {
        self.transport
            .write_driver_features(driver_features | ACCESS_PLATFORM)
    }

    // all else is the transport's own
    fn device_type(&self) -> DeviceType {
        self.transport.device_type()
    }
    fn read_device_features(&mut self) -> u64 {
        self.transport.read_device_features()
    }
    fn max_queue_size(&mut self, queue: u16) -> u32 {
        self.transport.max_queue_size(queue)
    }
    fn notify(&mut self, queue: u16) {
        self.transport.notify(queue)
    }
    fn get_status(&self) -> DeviceStatus {
        self.transport.get_status()
    }
    fn set_status(&mut self, status: DeviceStatus) {
        self.transport.set_status(status)
    }
    fn set_guest_page_size(&mut self, guest_page_size: u32) {
        self.transport.set_guest_page_size(guest_page_size)
    }
    fn requires_legacy_layout(&self) -> bool {
        self.transport.requires_legacy_layout()
    }
    fn queue_set(
        &mut self,
        queue: u16,
        size: u32,
        descriptors: PhysAddr,
        driver_area: PhysAddr,
        device_area: PhysAddr,
    ) {
        let (desc, avail, used) = (descriptors, driver_area, device_area);
        self.transport.queue_set(queue, size, desc, avail, used)
    }
    fn queue_unset(&mut self, queue: u16) {
        self.transport.queue_unset(queue)
    }
    fn queue_used(&mut self, queue: u16) -> bool {
        self.transport.queue_used(queue)
    }
    fn ack_interrupt(&mut self) -> InterruptStatus {
        self.transport.ack_interrupt()
    }
    fn read_config_generation(&self) -> u32 {
        self.transport.read_config_generation()
    }
    fn read_config_space<V: FromBytes + IntoBytes>(&self, offset: usize) -> Result<V> {
        self.transport.read_config_space(offset)
    }
    fn write_config_space<V: IntoBytes + Immutable>(
        &mut self,
        offset: usize,
        value: V,
    ) -> Result<()> {
        self.transport.write_config_space(offset, value)
    }
}
