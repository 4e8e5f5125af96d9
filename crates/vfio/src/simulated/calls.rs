// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The calls of the simulated kernel.

use super::{
    Event, SimFile, SimRegion, Simulated,
    machine::{COMMAND, CONFIG_LEN, File, OpenDevice, Remapping, SimDevice, State},
    space::{Pins, Rules, Space},
};
use crate::{device::PciAddress, kernel::*};
use ioatlas_dma::units::*;
use std::os::fd::BorrowedFd;

const CONFIG_AT: u64 = 7 << 40;

impl SimDevice {
    fn name(&self) -> String {
        self.address.to_string()
    }
    /// Its file's number below /dev/vfio/devices.
    fn number(&self) -> u16 {
        self.address.function.0
    }
}

impl State {
    fn named(&self, name: &str) -> Result<&SimDevice, Errno> {
        let mut devices = self.machine.devices.iter();
        devices.find(|d| d.name() == name).ok_or(Errno::NOENT)
    }
    fn is_viable(&self, group: u32) -> bool {
        let own = |driver: &str| driver.contains("vfio") || driver == "pcieport";
        let in_the_way = |d: &SimDevice| d.group == Some(group) && !d.driver.is_none_or(own);
        !self.machine.devices.iter().any(in_the_way)
    }
    fn kind_of(&self, path: &str) -> Result<File, Errno> {
        if self.machine.missing.contains(&path) {
            return Err(Errno::NOENT);
        }
        if self.machine.forbidden.contains(&path) {
            return Err(Errno::ACCES);
        }
        match path {
            "/dev/vfio/vfio" => return Ok(File::Container { space: None }),
            "/dev/iommu" => return Ok(File::Iommufd { spaces: Vec::new() }),
            _ => {}
        }
        let rest = path.strip_prefix("/dev/vfio/").ok_or(Errno::NOENT)?;
        if let Some(number) = rest.strip_prefix("devices/vfio") {
            let mut devices = self.machine.devices.iter();
            let device = devices.find(|d| d.number().to_string() == number && is_bound(d));
            let address = device.ok_or(Errno::NOENT)?.address;
            return self.fresh(address, None).map(File::Device);
        }
        let number: u32 = rest.parse().map_err(|_| Errno::NOENT)?;
        let mut devices = self.machine.devices.iter();
        if !devices.any(|d| d.group == Some(number) && is_bound(d)) {
            return Err(Errno::NOENT);
        }
        let open = |file: &File| matches!(file, File::Group { number: n, .. } if *n == number);
        match self.files.values().any(open) {
            true => Err(Errno::BUSY),
            false => Ok(File::Group {
                number,
                space: None,
            }),
        }
    }
    fn fresh(&self, address: PciAddress, space: Option<u64>) -> Result<Box<OpenDevice>, Errno> {
        let open = |file: &File| matches!(file, File::Device(d) if d.address == address);
        if self.files.values().any(open) {
            return Err(Errno::BUSY);
        }
        let mut config = [0; CONFIG_LEN];
        config[..2].copy_from_slice(&0x1b36u16.to_le_bytes());
        config[2..4].copy_from_slice(&0x0010u16.to_le_bytes());
        config[COMMAND] = 0b111; // as firmware may leave it
        // a power management capability, then MSI-X
        config[6] = 1 << 4;
        config[0x34] = 0x40;
        config[0x40..0x42].copy_from_slice(&[1, 0x50]);
        config[0x50] = 0x11;
        Ok(Box::new(OpenDevice {
            address,
            space,
            bound: false,
            config,
        }))
    }
    fn space_of(&mut self, file: u64) -> Result<u64, Errno> {
        match self.files.get(&file) {
            Some(File::Container { space }) => space.ok_or(Errno::INVAL),
            _ => Err(Errno::NOTTY),
        }
    }
    fn ioas(&self, file: u64, ioas: ObjectId) -> Result<u64, Errno> {
        let number = u64::from(ioas.0);
        match self.files.get(&file) {
            Some(File::Iommufd { spaces }) if spaces.contains(&number) => Ok(number),
            Some(File::Iommufd { .. }) => Err(Errno::NOENT),
            _ => Err(Errno::NOTTY),
        }
    }
    fn map(&mut self, number: u64, call: &MapCall) -> Result<(), Errno> {
        let State {
            spaces,
            pinned,
            machine,
            events,
            ..
        } = self;
        let space = spaces.get_mut(&number).ok_or(Errno::NODEV)?;
        let pins = Pins {
            pinned,
            limit: machine.pin_limit.map(|limit| limit.0),
            no_memory: &machine.no_memory,
        };
        space.map(call, pins)?;
        events.push(Event::Mapped(call.iova));
        Ok(())
    }
    fn unmap(&mut self, number: u64, iova: Iova, len: ByteCount) -> Result<ByteCount, Errno> {
        let space = self.spaces.get_mut(&number).ok_or(Errno::NODEV)?;
        let (gone, result) = space.unmap(iova, len);
        for map in gone {
            self.pinned -= map.len.0;
            self.events.push(Event::Unmapped(map.iova));
        }
        result
    }
    /// Changes a device's command register as `change` does, and notes what that means.
    fn with_config(&mut self, number: u64, change: impl FnOnce(&mut [u8])) -> Result<(), Errno> {
        let device = self.device_file(number)?;
        let before = device.is_master();
        change(&mut device.config);
        let (address, after) = (device.address, device.is_master());
        match (before, after) {
            (false, true) => self.events.push(Event::Going(address)),
            (true, false) => self.events.push(Event::Stopped(address)),
            _ => {}
        }
        Ok(())
    }
}

fn is_bound(device: &SimDevice) -> bool {
    device.driver.is_some_and(|driver| driver.contains("vfio"))
}

impl Simulated {
    fn file(&self, state: &mut State, file: File) -> SimFile {
        let number = state.number();
        state.files.insert(number, file);
        SimFile {
            kernel: self.clone(),
            number,
        }
    }
    fn called(&self) -> Result<std::sync::MutexGuard<'_, State>, Errno> {
        let mut state = self.state();
        state.call()?;
        Ok(state)
    }
}

// SAFETY: its devices are simulated: they reach memory by what its state maps at that moment.
unsafe impl Kernel for Simulated {
    type Fd = SimFile;
    type Mapped = SimRegion;

    fn open(&self, path: &str) -> Result<SimFile, Errno> {
        let mut state = self.called()?;
        let kind = state.kind_of(path)?;
        Ok(self.file(&mut state, kind))
    }
    fn link(&self, path: &str) -> Result<String, Errno> {
        let state = self.called()?;
        let rest = path.strip_prefix("/sys/bus/pci/devices/");
        let (name, link) = rest.and_then(|r| r.split_once('/')).ok_or(Errno::NOENT)?;
        let device = state.named(name)?;
        match link {
            "driver" => device.driver.map(str::to_owned).ok_or(Errno::NOENT),
            "iommu_group" => {
                let group = device.group.ok_or(Errno::NOENT)?;
                Ok(group.to_string())
            }
            _ => Err(Errno::NOENT),
        }
    }
    fn list(&self, path: &str) -> Result<Vec<String>, Errno> {
        let state = self.called()?;
        if let Some(group) = path.strip_prefix("/sys/kernel/iommu_groups/") {
            let number = group.split('/').next().and_then(|n| n.parse().ok());
            let devices = state.machine.devices.iter();
            let own = devices.filter(|d| d.group.is_some() && d.group == number);
            return Ok(own.map(SimDevice::name).collect());
        }
        let rest = path.strip_prefix("/sys/bus/pci/devices/");
        let rest = rest.ok_or(Errno::NOENT)?;
        match rest.split_once('/') {
            None => state.named(rest).map(|_| vec!["config".to_owned()]),
            Some((name, "vfio-dev")) => {
                let device = state.named(name)?;
                let there = is_bound(device) && !state.machine.missing.contains(&"vfio-dev");
                let name = format!("vfio{}", device.number());
                there.then(|| vec![name]).ok_or(Errno::NOENT)
            }
            Some(_) => Err(Errno::NOENT),
        }
    }
    fn pin_limit(&self) -> Option<ByteCount> {
        self.state().machine.pin_limit
    }

    fn api_version(&self, _container: &SimFile) -> Result<u32, Errno> {
        self.called().map(|_| 0)
    }
    fn has_type1_v2(&self, _container: &SimFile) -> Result<bool, Errno> {
        let state = self.called()?;
        Ok(!state.machine.missing.contains(&"vfio_iommu_type1"))
    }
    fn group_status(&self, group: &SimFile) -> Result<GroupStatus, Errno> {
        let state = self.called()?;
        match state.files.get(&group.number) {
            Some(File::Group { number, .. }) => Ok(match state.is_viable(*number) {
                true => GroupStatus::Viable,
                false => GroupStatus::NotViable,
            }),
            _ => Err(Errno::NOTTY),
        }
    }
    fn set_container(&self, group: &SimFile, container: &SimFile) -> Result<(), Errno> {
        let mut state = self.called()?;
        let own = match state.files.get(&container.number) {
            Some(File::Container { space }) => *space,
            _ => return Err(Errno::INVAL),
        };
        let space = own.unwrap_or_else(|| state.number());
        for number in [group.number, container.number] {
            match state.files.get_mut(&number) {
                Some(File::Group { space: own, .. } | File::Container { space: own }) => {
                    *own = Some(space)
                }
                _ => return Err(Errno::NOTTY),
            }
        }
        Ok(())
    }
    fn set_iommu(&self, container: &SimFile) -> Result<(), Errno> {
        let mut state = self.called()?;
        let space = state.space_of(container.number)?;
        if state.machine.remapping == Remapping::Off {
            return Err(Errno::PERM);
        }
        let machine = &state.machine;
        let made = Space::new(
            Rules::Type1,
            machine.ranges.clone(),
            machine.granule,
            Some(machine.mappings),
        );
        state.spaces.insert(space, made);
        Ok(())
    }
    fn type1_info(&self, container: &SimFile) -> Result<SpaceInfo, Errno> {
        let mut state = self.called()?;
        let number = state.space_of(container.number)?;
        let space = state.spaces.get(&number).ok_or(Errno::NODEV)?;
        Ok(SpaceInfo {
            ranges: space.ranges.clone(),
            granule: state.machine.granule,
            page_sizes: Some(PageSizes(
                state.machine.granule.0 | state.machine.granule.0 << 9,
            )),
            mappings: space.avail,
        })
    }
    unsafe fn type1_map(&self, container: &SimFile, call: &MapCall) -> Result<(), Errno> {
        let mut state = self.called()?;
        let space = state.space_of(container.number)?;
        state.map(space, call)
    }
    fn type1_unmap(
        &self,
        container: &SimFile,
        iova: Iova,
        len: ByteCount,
    ) -> Result<ByteCount, Errno> {
        std::thread::yield_now(); // so that others see what lies between
        let mut state = self.called()?;
        let space = state.space_of(container.number)?;
        state.unmap(space, iova, len)
    }
    fn device_of_group(&self, group: &SimFile, name: &str) -> Result<SimFile, Errno> {
        let mut state = self.called()?;
        let Some(File::Group { number, space }) = state.files.get(&group.number) else {
            return Err(Errno::NOTTY);
        };
        let (number, space) = (*number, *space);
        let device = state.named(name).map_err(|_| Errno::NODEV)?;
        if device.group != Some(number) || !is_bound(device) {
            return Err(Errno::NODEV);
        }
        let device = state.fresh(device.address, space)?;
        Ok(self.file(&mut state, File::Device(device)))
    }

    fn ioas_alloc(&self, iommufd: &SimFile) -> Result<ObjectId, Errno> {
        let mut state = self.called()?;
        let number = state.number();
        // the ranges come with the devices
        let everything = vec![(Iova(0), Iova(u64::MAX))];
        let space = Space::new(Rules::Iommufd, everything, ByteCount(1), None);
        match state.files.get_mut(&iommufd.number) {
            Some(File::Iommufd { spaces }) => spaces.push(number),
            _ => return Err(Errno::NOTTY),
        }
        state.spaces.insert(number, space);
        Ok(ObjectId(number as u32))
    }
    fn destroy(&self, iommufd: &SimFile, object: ObjectId) -> Result<(), Errno> {
        let mut state = self.called()?;
        let number = state.ioas(iommufd.number, object)?;
        let uses = |file: &File| matches!(file, File::Device(d) if d.space == Some(number));
        if state.files.values().any(uses) {
            return Err(Errno::BUSY);
        }
        if let Some(File::Iommufd { spaces }) = state.files.get_mut(&iommufd.number) {
            spaces.retain(|space| *space != number);
        }
        if let Some(space) = state.spaces.remove(&number) {
            state.pinned -= space.bytes();
        }
        Ok(())
    }
    fn ioas_info(&self, iommufd: &SimFile, ioas: ObjectId) -> Result<SpaceInfo, Errno> {
        let state = self.called()?;
        let number = state.ioas(iommufd.number, ioas)?;
        let space = state.spaces.get(&number).ok_or(Errno::NOENT)?;
        Ok(SpaceInfo {
            ranges: space.ranges.clone(),
            granule: state.machine.granule,
            page_sizes: None,
            mappings: None,
        })
    }
    fn ioas_allow(
        &self,
        iommufd: &SimFile,
        ioas: ObjectId,
        ranges: &[(Iova, Iova)],
    ) -> Result<(), Errno> {
        let mut state = self.called()?;
        let number = state.ioas(iommufd.number, ioas)?;
        let space = state.spaces.get_mut(&number).ok_or(Errno::NOENT)?;
        space.allow(ranges)
    }
    unsafe fn ioas_map(
        &self,
        iommufd: &SimFile,
        ioas: ObjectId,
        call: &MapCall,
    ) -> Result<(), Errno> {
        let mut state = self.called()?;
        let space = state.ioas(iommufd.number, ioas)?;
        state.map(space, call)
    }
    fn ioas_unmap(
        &self,
        iommufd: &SimFile,
        ioas: ObjectId,
        iova: Iova,
        len: ByteCount,
    ) -> Result<ByteCount, Errno> {
        std::thread::yield_now(); // as above
        let mut state = self.called()?;
        let space = state.ioas(iommufd.number, ioas)?;
        state.unmap(space, iova, len)
    }
    fn bind_iommufd(&self, device: &SimFile, _iommufd: &SimFile) -> Result<ObjectId, Errno> {
        let mut state = self.called()?;
        if state.machine.remapping == Remapping::Off {
            return Err(Errno::PERM);
        }
        let address = state.device_file(device.number)?.address;
        let group = state.machine.device(address).and_then(|d| d.group);
        if group.is_some_and(|group| !state.is_viable(group)) {
            return Err(Errno::INVAL);
        }
        state.device_file(device.number)?.bound = true;
        Ok(ObjectId(device.number as u32))
    }
    fn attach_ioas(&self, device: &SimFile, ioas: ObjectId) -> Result<(), Errno> {
        let mut state = self.called()?;
        let ranges = state.machine.ranges.clone();
        let granule = state.machine.granule;
        if !state.device_file(device.number)?.bound {
            return Err(Errno::INVAL);
        }
        let number = u64::from(ioas.0);
        let space = state.spaces.get_mut(&number).ok_or(Errno::NOENT)?;
        let outside =
            |(first, last): &(Iova, Iova)| !ranges.iter().any(|r| r.0 <= *first && *last <= r.1);
        if space.allowed.iter().any(outside) {
            return Err(Errno::ADDRINUSE);
        }
        space.narrow(ranges, granule);
        state.device_file(device.number)?.space = Some(number);
        Ok(())
    }
    fn detach_ioas(&self, device: &SimFile) -> Result<(), Errno> {
        let mut state = self.called()?;
        state.device_file(device.number)?.space = None;
        Ok(())
    }

    fn device_info(&self, device: &SimFile) -> Result<DeviceInfo, Errno> {
        let mut state = self.called()?;
        let address = state.device_file(device.number)?.address;
        let device = state.machine.device(address).ok_or(Errno::NODEV)?;
        Ok(DeviceInfo {
            reset: device.reset,
            regions: 9,
            irqs: 5,
        })
    }
    fn region_info(&self, device: &SimFile, region: u32) -> Result<RegionInfo, Errno> {
        let mut state = self.called()?;
        let address = state.device_file(device.number)?.address;
        let device = state.machine.device(address).ok_or(Errno::NODEV)?;
        let (len, mappable) = match region {
            // all but the last page, where the table of MSI-X is
            0 => {
                let most = device.bar.0.saturating_sub(GRANULE);
                (device.bar.0, vec![(0, ByteCount(most))])
            }
            7 => (CONFIG_LEN as u64, Vec::new()),
            1..9 => (0, Vec::new()),
            _ => return Err(Errno::INVAL),
        };
        Ok(RegionInfo {
            offset: u64::from(region) << 40,
            len: ByteCount(len),
            mappable: mappable.into_iter().filter(|(_, len)| len.0 > 0).collect(),
        })
    }
    fn irq_info(&self, device: &SimFile, irq: u32) -> Result<IrqInfo, Errno> {
        let mut state = self.called()?;
        let address = state.device_file(device.number)?.address;
        let device = state.machine.device(address).ok_or(Errno::NODEV)?;
        match irq {
            2 => Ok(IrqInfo {
                vectors: device.vectors,
            }),
            0 | 1 | 3 | 4 => Ok(IrqInfo { vectors: 1 }),
            _ => Err(Errno::INVAL),
        }
    }
    fn set_irqs(&self, device: &SimFile, irq: u32, events: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut state = self.called()?;
        let address = state.device_file(device.number)?.address;
        let device = state.machine.device(address).ok_or(Errno::NODEV)?;
        let most = match irq {
            2 => device.vectors as usize,
            _ => 1,
        };
        match events.len() <= most {
            true => Ok(()),
            false => Err(Errno::INVAL),
        }
    }
    fn reset(&self, device: &SimFile) -> Result<(), Errno> {
        let mut state = self.called()?;
        let address = state.device_file(device.number)?.address;
        let known = state.machine.device(address).ok_or(Errno::NODEV)?;
        if known.reset == Reset::Unsupported {
            return Err(Errno::NOTTY);
        }
        state.events.push(Event::Reset(address));
        Ok(())
    }
    fn read_at(&self, device: &SimFile, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        let mut state = self.called()?;
        let device = state.device_file(device.number)?;
        match offset.checked_sub(CONFIG_AT) {
            Some(at) => {
                let bytes = device.config.get(at as usize..).ok_or(Errno::INVAL)?;
                into.copy_from_slice(bytes.get(..into.len()).ok_or(Errno::INVAL)?);
            }
            None => into.fill(0),
        }
        Ok(())
    }
    fn write_at(&self, device: &SimFile, offset: u64, from: &[u8]) -> Result<(), Errno> {
        let mut state = self.called()?;
        let Some(at) = offset.checked_sub(CONFIG_AT) else {
            return state.device_file(device.number).map(drop);
        };
        let at = at as usize;
        if at + from.len() > CONFIG_LEN {
            return Err(Errno::INVAL);
        }
        state.with_config(device.number, |config| {
            config[at..at + from.len()].copy_from_slice(from);
        })
    }
    fn map_region(
        &self,
        device: &SimFile,
        _offset: u64,
        len: ByteCount,
    ) -> Result<SimRegion, Errno> {
        let mut state = self.called()?;
        state.device_file(device.number)?;
        Ok(SimRegion::new(len.0 as usize))
    }
}
