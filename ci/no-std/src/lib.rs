// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A kernel's view of ioatlas: no `std`, a platform of its own, every path of core and driver
//! compiled for it.
//!
//! Nothing here is run. `ci/check-no-std.sh` looks into the archive for what a kernel could not
//! link: symbols of `std`, of the C library, and thread-local storage.
#![no_std]

extern crate alloc;

mod platform;
mod runtime;

use alloc::sync::Arc;
use ioatlas_dma::{
    domain::{Domain, DomainConfig, Lent, PolicyConfig},
    translator::{Paged, RemappingUnit, TableConfig, Uncached, VtdSecond48},
    units::*,
};
use ioatlas_vtd::{
    driver::{Config, Unit},
    registers::{Reg32, Reg64, Registers},
};
use platform::Kernel;

/// The register block of a unit, mapped at an address.
struct Mapped(usize);

// SAFETY: as the maker of `self` promised.
unsafe impl Registers for Mapped {
    fn read32(&self, register: Reg32) -> u32 {
        let at = (self.0 + usize::from(register.0)) as *const u32;
        // SAFETY: the maker of `self` promised that a register block is mapped there.
        unsafe { at.read_volatile() }
    }
    fn read64(&self, register: Reg64) -> u64 {
        let at = (self.0 + usize::from(register.0)) as *const u64;
        // SAFETY: as in `read32`.
        unsafe { at.read_volatile() }
    }
    fn write32(&self, register: Reg32, value: u32) {
        let at = (self.0 + usize::from(register.0)) as *mut u32;
        // SAFETY: as in `read32`.
        unsafe { at.write_volatile(value) }
    }
    fn write64(&self, register: Reg64, value: u64) {
        let at = (self.0 + usize::from(register.0)) as *mut u64;
        // SAFETY: as in `read32`.
        unsafe { at.write_volatile(value) }
    }
}

/// Domains under a unit without caches; 0 if all went well.
#[unsafe(no_mangle)]
pub extern "C" fn ioatlas_uncached(device: u16, buffer: u64, len: u64, now_ns: u64) -> i32 {
    let platform = Arc::new(Kernel);
    let unit = Arc::new(Uncached::<Kernel>::new());
    let buffer = PhysRange::new(PhysAddr(buffer), ByteCount(len));
    status(policies(
        &platform,
        &unit,
        SourceId(device),
        buffer,
        TimeNs(now_ns),
    ))
}

/// The same under a VT-d unit, which is brought up and shut down; 0 if all went well.
///
/// # Safety
/// The register block of a remapping unit that nothing else uses is mapped at `base`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioatlas_vtd(
    base: usize,
    device: u16,
    buffer: u64,
    len: u64,
    now_ns: u64,
) -> i32 {
    let platform = Arc::new(Kernel);
    let Ok(unit) = Unit::bring_up(platform.clone(), Mapped(base), Config::default()) else {
        return -1;
    };
    let unit = Arc::new(unit);
    let buffer = PhysRange::new(PhysAddr(buffer), ByteCount(len));
    let done = policies(&platform, &unit, SourceId(device), buffer, TimeNs(now_ns));
    // SAFETY: the device is detached, and the C side tells it nothing more.
    let ended = Arc::into_inner(unit).and_then(|unit| unsafe { unit.shut_down() }.ok());
    status(done.and(ended))
}

fn status(done: Option<()>) -> i32 {
    if done.is_some() { 0 } else { -1 }
}

/// One domain a policy, with magazines.
fn policies<U: RemappingUnit<Kernel>>(
    platform: &Arc<Kernel>,
    unit: &Arc<U>,
    device: SourceId,
    buffer: PhysRange,
    now: TimeNs,
) -> Option<()> {
    let deferred = PolicyConfig::DeferredPerCpu(Default::default());
    for policy in [PolicyConfig::Strict, deferred] {
        let tables =
            Paged::<_, VtdSecond48, _>::new(platform, unit.clone(), TableConfig::default()).ok()?;
        let config = DomainConfig::default().policy(policy);
        whole_life(
            Domain::new(platform.clone(), tables, config).ok()?,
            device,
            buffer,
            now,
        )?;
    }
    Some(())
}

/// Every public operation of a domain.
fn whole_life<U: RemappingUnit<Kernel>>(
    domain: Domain<Kernel, Paged<Kernel, VtdSecond48, U>>,
    device: SourceId,
    buffer: PhysRange,
    now: TimeNs,
) -> Option<()> {
    domain.attach(device).ok()?;
    let twice = [buffer; 2];
    // SAFETY: the C side lends it to the device for the whole call, and awaits writes there.
    let (one, list, at) = unsafe { (Lent::new(buffer), Lent::new(&twice[..]), Lent::new(buffer)) };
    let one = domain.map(one, Direction::ToDevice).ok()?;
    let list = domain.map_list(list, Direction::FromDevice).ok()?;
    let chosen = Iova(0x10_0000 + buffer.addr.offset());
    let at = domain.map_at(chosen, at, Direction::Bidirectional).ok()?;
    let ring = domain.alloc_consistent(ByteCount(2 * GRANULE)).ok()?;
    domain.unmap(one).ok()?;
    let (iova, len) = domain.into_raw(list).ok()?;
    domain.unmap_raw(iova, len).ok()?;
    domain.unmap(at).ok()?;
    domain.free_consistent(ring).ok()?;
    domain.tick(now).ok()?;
    domain.flush().ok()?;
    domain.shrink();
    domain.audit().ok()?;
    domain.detach(device).ok()?;
    domain.close().ok()
}
