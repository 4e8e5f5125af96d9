// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What `vhost` calls for each request that it knows.
//!
//! An error of one of these ends the connection: `vhost` answers it, if an answer was asked for,
//! and gives up.

use super::{
    Device, Iommu,
    ring::{Kick, RING_PACKED, RawParts, unblocked},
    session::{PROTOCOL_FEATURES, Session},
    worker::Shared,
};
use crate::{
    cache::*,
    log_limit::peer_log,
    protocol::{
        ACCESS_PLATFORM,
        foreign::Foreign,
        memory::{GuestPhys, MemoryError, MemoryTable, Region, RegionInfo},
        message::FrontAddr,
    },
};
use ioatlas_dma::units::*;
use std::{fs::File, io, os::fd::OwnedFd};
use vhost::{
    VhostUserMemoryRegionBase,
    vhost_user::{Backend, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, message::*},
};
use virtio_queue::QueueT;

/// Memory regions at a time. `SET_MEM_TABLE` can bring 32; the rest come one by one.
const MEMORY_SLOTS: usize = 509;

fn info_of(region: &VhostUserMemoryRegion) -> RegionInfo {
    RegionInfo {
        guest: GuestPhys(region.guest_phys_addr),
        front: FrontAddr(region.user_addr),
        len: ByteCount(region.memory_size),
        file_offset: ByteCount(region.mmap_offset),
    }
}

fn refused(e: MemoryError) -> Error {
    peer_log!(Error, "memory table: {e}");
    Error::ReqHandlerError(io::Error::other(e))
}

pub(super) fn system(e: io::Error) -> Error {
    Error::ReqHandlerError(e)
}

const NOT_OFFERED: Error = Error::InvalidOperation("not offered");

impl<D: Device, T: DeviceIotlb> Session<D, T> {
    fn map(&self, region: &VhostUserMemoryRegion, file: Foreign) -> Result<Region> {
        let (shrink, files) = (self.config.shrink, self.config.files);
        Region::map(info_of(region), file, shrink, files).map_err(refused)
    }
}

impl<D: Device, T: DeviceIotlb> VhostUserBackendReqHandlerMut for Session<D, T> {
    fn set_owner(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.owned, true) {
            false => Ok(()),
            true => Err(Error::InvalidOperation("already owned")),
        }
    }

    /// The specification wants this message of old ignored, or taken as one that disables all
    /// rings; memory, features and back channel stay in either case.
    fn reset_owner(&mut self) -> Result<()> {
        self.owned = false;
        self.disable_rings();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.disable_rings();
        self.device.reset();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let extra = features & !self.offered();
        if extra != 0 {
            peer_log!(Error, "features {extra:#x} were not offered");
            return Err(Error::InvalidParam);
        }
        if self.config.iommu == Iommu::Demanded && features & ACCESS_PLATFORM == 0 {
            peer_log!(
                Error,
                "no VIRTIO_F_ACCESS_PLATFORM, and the device does not run without an IOMMU"
            );
            return Err(Error::FeatureMismatch);
        }
        // With an IOMMU this begins a device's life, as it does for vhost in the kernel: nothing is
        // known of the one before.
        let first = !self.negotiated;
        let news = first || features != self.features;
        if first || features != self.features || features & ACCESS_PLATFORM != 0 {
            self.change_all(|session| {
                session.features = features;
                session.negotiated = true;
                session.connect_misses();
            });
        }
        if features & PROTOCOL_FEATURES == 0 {
            for queue in 0..self.device.queues() {
                self.set_vring_enable(queue.into(), true)?;
            }
        }
        self.device.negotiated(features);
        if news {
            let iommu = if self.has_iommu() { "on" } else { "off" };
            let rings = match features & RING_PACKED {
                0 => "split",
                _ => "packed",
            };
            let queues = self.device.queues();
            peer_log!(
                Info,
                "connected, IOMMU {iommu}, {rings} rings, at most {queues} queues"
            );
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        // At once: an error leaves the rest to be closed.
        let files: Vec<_> = files.into_iter().map(Foreign::from).collect();
        let mut table = MemoryTable::default();
        for (region, file) in regions.iter().zip(files) {
            table.add(self.map(region, file)?).map_err(refused)?;
        }
        self.change_all(|session| session.table = table);
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.change_ring(index, |session, ring, _| {
            let max = u32::from(ring.queue.max_size());
            let packed = session.features & RING_PACKED != 0;
            if num == 0 || num > max || (!packed && !num.is_power_of_two()) {
                peer_log!(Error, "queue {index} of {num} entries, of at most {max}");
                return Err(Error::InvalidParam);
            }
            session.halt(ring);
            ring.size = num as u16;
            Ok(())
        })
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let raw = RawParts {
            descriptors: FrontAddr(descriptor),
            driver: FrontAddr(available),
            device: FrontAddr(used),
        };
        self.change_ring(index, |session, ring, _| {
            session.halt(ring);
            ring.raw = Some(raw);
            Ok(())
        })
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.change_ring(index, |session, ring, _| {
            session.halt(ring);
            ring.base = base;
            Ok(())
        })
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let base = self.change_ring(index, |session, ring, shared| {
            session.halt(ring);
            session.set_kick(ring, shared, Kick::Unset)?;
            ring.set_call(None);
            Ok(ring.base)
        })?;
        self.forget_if_idle();
        Ok(VhostUserVringState::new(index, base))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = match fd {
            None => Kick::Polling,
            Some(file) => Kick::Event(unblocked(file).map_err(system)?),
        };
        self.change_ring(index.into(), |session, ring, shared| {
            session.set_kick(ring, shared, kick)
        })
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = fd.map(unblocked).transpose().map_err(system)?;
        self.change_ring(index.into(), |_, ring, _| {
            ring.set_call(call);
            Ok(())
        })
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let err = fd.map(unblocked).transpose().map_err(system)?;
        self.change_ring(index.into(), |_, ring, _| {
            ring.err = err;
            Ok(())
        })
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        use VhostUserProtocolFeatures as Features;
        let ours = Features::REPLY_ACK
            | Features::BACKEND_REQ
            | Features::CONFIGURE_MEM_SLOTS
            | Features::RESET_DEVICE;
        // Front ends differ in whether the number is of queues or of pairs. Without `MQ` none asks,
        // and each takes one queue, or one pair.
        let many = match self.device.queue_num() {
            ..=1 => Features::empty(),
            _ => Features::MQ,
        };
        Ok(self.device.protocol_features() | ours | many)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let extra = features & !self.get_protocol_features()?.bits();
        if extra != 0 {
            peer_log!(Error, "protocol features {extra:#x} were not offered");
            return Err(Error::InvalidParam);
        }
        self.protocol = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.device.queue_num().into())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.enable(index, enable.into())
    }

    fn get_config(&mut self, offset: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Ok(self.device.read_config(offset, size))
    }

    fn set_config(&mut self, offset: u32, buf: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        self.device.write_config(offset, buf).map_err(system)
    }

    fn set_backend_req_fd(&mut self, backend: Backend) {
        // `vhost` has found it to be a stream socket; ours is the same one. So is the device's, for
        // programs that it starts would inherit the one that `vhost` received.
        self.channel = self.back.take();
        self.connect_misses();
        let ours = self.channel.as_ref().map(OwnedFd::try_clone);
        let backend = match ours {
            Some(Ok(fd)) => Backend::from_stream(fd.into()),
            _ => backend,
        };
        backend.set_reply_ack_flag(self.replies());
        self.device.back_channel(backend);
        // Queues that stopped for want of a back channel begin when kicked again.
        self.workers.iter().for_each(Shared::wake);
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(NOT_OFFERED)
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(NOT_OFFERED)
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MEMORY_SLOTS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        let file = Foreign::from(file);
        if self.table.regions().count() >= MEMORY_SLOTS {
            peer_log!(Error, "more than {MEMORY_SLOTS} memory regions");
            return Err(Error::InvalidParam);
        }
        let mut table = self.table.clone();
        table.add(self.map(region, file)?).map_err(refused)?;
        self.change_all(|session| session.table = table);
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let mut table = self.table.clone();
        table.remove(info_of(region)).map_err(refused)?;
        self.change_all(|session| session.table = table);
        Ok(())
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(NOT_OFFERED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(NOT_OFFERED)
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(NOT_OFFERED)
    }
}
