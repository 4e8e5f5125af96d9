// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A kernel that drives VT-d units: brings them up, moves data by a device, has its unit block the
//! device, unmaps from interrupts that hit maps, runs drivers of virtio devices, shuts everything
//! down, and says whether all went well. See README.md.
#![no_std]
#![no_main]
#![allow(clippy::disallowed_types)] // a platform, and what is built on it alone, may

extern crate alloc;

mod completion;
mod edu;
mod machine;
mod platform;
mod virtio;

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use completion::{BURST, HITS, MAPPING, hand_over, is_pending};
use core::sync::atomic::{AtomicU64, Ordering};
use edu::{COPY_TIME, Edu, configuration};
use ioatlas_dma::domain::{Domain, DomainConfig, Lent};
use ioatlas_dma::translator::{Paged, TableConfig, VtdSecond48};
use ioatlas_dma::units::*;
use ioatlas_vtd::acpi::find;
use ioatlas_vtd::registers::{IQ_INDEX_SHIFT, IQT, Registers};
use ioatlas_vtd::units::{SharedUnit, Units};
use machine::{Block, DEVICE, TIMER, interrupt_in, println, sleep, sleep_until};
use platform::{Kernel, free_frames};

core::arch::global_asm!(include_str!("boot.s"), options(att_syntax));

/// The remapping units of this machine.
type Remapping = Units<Kernel, Block>;
/// A domain under it, with tables of four levels.
type Io = Domain<Kernel, Paged<Kernel, VtdSecond48, SharedUnit<Kernel, Block>>>;

/// What goes wrong in the driver. (What goes wrong in the story is a panic.)
type Outcome<T> = Result<T, Box<dyn core::error::Error>>;

/// How much is moved: less than a page, and not from the start of one.
const LEN: ByteCount = ByteCount(8 * WORDS as u64);
const WORDS: usize = 125;
/// The buffer. Of atomic words, since a device changes them.
static BUFFER: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; _];

/// boot.s comes here, with interrupts masked.
#[unsafe(no_mangle)]
extern "C" fn kernel() -> ! {
    machine::enable_interrupts();
    run().unwrap_or_else(|why| panic!("{why}"));
    println!("ok");
    machine::exit(machine::GOOD)
}

fn run() -> Outcome<()> {
    let frames = free_frames();
    let units = bring_up()?;
    let edu = Edu::find().ok_or("there is no edu device")?;
    let unit = units.unit_of(edu.source.into(), &configuration)?.clone();

    let tables = Paged::new(&Arc::new(Kernel), unit.clone(), TableConfig::default())?;
    let io = Io::new(Arc::new(Kernel), tables, DomainConfig::default())?;
    let io = Arc::new(io);
    io.attach(edu.source)?;
    edu.begin_dma();
    println!("device {}: in domain {}", edu.source, io.id());

    move_data(&io, &edu)?;
    block_stray(&io, &unit, &edu)?;
    // SAFETY: it is read only.
    let registers = unsafe { unit.registers() };
    unmap_burst(&io, &edu, || registers.read64(IQT) >> IQ_INDEX_SHIFT)?;
    let after = |round, _| interrupt_in(1 + round * 37 % 8192);
    interrupt_maps(&io, TIMER, 1000, after)?;
    let by_copy = |round, iova| {
        edu.begin(Direction::FromDevice, iova, LEN);
        sleep(COPY_TIME - 20_000 - round * 137); // it is almost done then
    };
    interrupt_maps(&io, DEVICE, 10, by_copy)?;

    virtio::drive_all(&units)?;
    assert!(unit.faults().0.is_empty(), "a virtio device was blocked");

    io.audit()?;
    println!("{io}");
    Arc::into_inner(io).ok_or("the domain is in use")?.close()?;
    drop(units);
    let unit = Arc::into_inner(unit).ok_or("the unit is in use")?;
    // SAFETY: one device that we use has done what it was told; the others master no bus.
    unsafe { unit.shut_down() }.map_err(|(why, _)| why)?;
    println!("closed: {} of {frames} frames are free", free_frames());
    assert_eq!(free_frames(), frames, "frames are lost");
    Ok(())
}

/// All units that firmware announces. From then on they block every device.
fn bring_up() -> Outcome<Remapping> {
    let memory = |at: PhysAddr, into: &mut [u8]| {
        if at.0.saturating_add(into.len() as u64) > 1 << 32 {
            return Err(find::Unreadable); // not mapped
        }
        // SAFETY: it is mapped, and firmware's tables do not change.
        unsafe { into.as_mut_ptr().copy_from(at.0 as *const u8, into.len()) };
        Ok(())
    };
    // SAFETY: a unit's registers, and nothing else drives it.
    let registers = |at: PhysAddr, _| Some(unsafe { Block::new(at.0) });
    let root = find::root_pointer(&memory)?;
    let units = Units::from_acpi(&Arc::new(Kernel), &memory, root, registers)?;
    for (nth, unit) in units.working() {
        let base = units.dmar().units[nth].registers;
        println!("unit at {base}\n{}", unit.explain());
    }
    units
        .failures()
        .for_each(|(_, failure)| println!("{failure}"));
    Ok(units)
}

/// The buffer, as a driver maps it.
fn buffer() -> PhysRange {
    PhysRange::new(PhysAddr(BUFFER.as_ptr() as u64), LEN)
}
/// For a mapping.
fn lent() -> Lent {
    // SAFETY: it is static, and accessed as atomic words.
    unsafe { Lent::new(buffer()) }
}
/// Fills the buffer with ascending numbers from `seed`.
fn fill(seed: u64) {
    let words = BUFFER.iter().zip(seed..);
    words.for_each(|(word, n)| word.store(n, Ordering::Relaxed));
}
/// How many of `words` are as [`fill`] leaves them.
fn intact(words: &[AtomicU64], seed: u64) -> usize {
    let right = |(word, n): &(&AtomicU64, u64)| word.load(Ordering::Relaxed) == *n;
    words.iter().zip(seed..).filter(right).count()
}

/// From the buffer, through the device, into consistent memory. The device's
/// interrupt unmaps the buffer.
fn move_data(io: &Arc<Io>, edu: &Edu) -> Outcome<()> {
    let ring = io.alloc_consistent(ByteCount(GRANULE))?;
    println!("consistent memory: {} bytes at {}", ring.len(), ring.iova());
    fill(0x1000);
    let mapping = io.map(lent(), Direction::ToDevice)?;
    let iova = mapping.iova();
    println!("buffer: {} at {iova}, for the device to read", buffer());
    hand_over(DEVICE, io, [mapping]);
    edu.copy(Direction::ToDevice, iova, LEN);
    edu.copy(Direction::FromDevice, ring.iova(), LEN);
    let moved = intact(&io.words(&ring, 0)[..WORDS], 0x1000);
    println!("moved: {moved} of {WORDS} words; the device's interrupt unmapped the buffer");
    assert_eq!((moved, is_pending()), (WORDS, false));
    Ok(io.free_consistent(ring)?)
}

/// The device, which still holds what it read, writes to the buffer: while it may, and after that.
fn block_stray(io: &Arc<Io>, unit: &SharedUnit<Kernel, Block>, edu: &Edu) -> Outcome<()> {
    let mapping = io.map(lent(), Direction::FromDevice)?;
    let iova = mapping.iova();
    fill(0);
    edu.copy(Direction::FromDevice, iova, LEN);
    let written = intact(&BUFFER, 0x1000);
    io.unmap(mapping)?;
    fill(0x2000);
    edu.copy(Direction::FromDevice, iova, LEN);
    let kept = intact(&BUFFER, 0x2000);
    println!("stray write: {written} words landed while mapped, {kept} are intact after unmap");
    let (faults, _) = unit.faults();
    faults.iter().for_each(|fault| println!("fault: {fault}"));
    assert_eq!((written, kept, faults.len()), (WORDS, WORDS, 1));
    Ok(())
}

/// The buffer is mapped many times, at addresses next to each other; the device fills it by each,
/// and the interrupt of the last transfer ends all mappings. `tail` tells how far the queue of the
/// unit is filled.
fn unmap_burst(io: &Arc<Io>, edu: &Edu, tail: impl Fn() -> u64) -> Outcome<()> {
    let mut chunk = io.chunk(PageCount(BURST as u64 * buffer().pages().0))?;
    let burst = (0..BURST).map(|_| chunk.map(lent(), Direction::FromDevice));
    let mut burst = burst.collect::<Result<Vec<_>, _>>()?;
    let iovas: Vec<Iova> = burst.iter().map(|mapping| mapping.iova()).collect();
    let (mut written, mut before) = (0, 0);
    for iova in &iovas {
        fill(0);
        if Some(iova) == iovas.last() {
            before = tail();
            hand_over(DEVICE, io, burst.drain(..));
        }
        edu.copy(Direction::FromDevice, *iova, LEN);
        written += intact(&BUFFER, 0x1000);
    }
    sleep_until(|| !is_pending());
    let asked = (tail() + 256 - before) % 256; // it has one page
    println!(
        "burst: {written} words landed; one interrupt ended {BURST} mappings by {asked} descriptors"
    );
    let translation = |iova: &Iova| io.translator().table().walk(&Kernel, iova.page());
    assert!(iovas.iter().all(|iova| translation(iova).is_none()));
    // one invalidation, and the wait for it
    assert_eq!((written, asked), (BURST * WORDS, 2));
    Ok(())
}

/// Maps and unmaps until `wanted` interrupts by `vector` have hit a map, and unmapped another
/// mapping there. `arm` has one come.
fn interrupt_maps(io: &Arc<Io>, vector: u64, wanted: u64, arm: impl Fn(u32, Iova)) -> Outcome<()> {
    let translation = |iova: Iova| io.translator().table().walk(&Kernel, iova.page());
    let right = Some((buffer().addr.page(), Perm::Read));
    let (mut rounds, mut maps) = (0, 0_u64);
    while HITS.load(Ordering::Relaxed) < wanted {
        let victim = io.map(lent(), Direction::FromDevice)?;
        let iova = victim.iova();
        hand_over(vector, io, [victim]);
        rounds += 1;
        arm(rounds, iova);
        while is_pending() {
            MAPPING.store(1, Ordering::SeqCst);
            let mapping = io.map(lent(), Direction::ToDevice)?;
            MAPPING.store(0, Ordering::SeqCst);
            assert_eq!(translation(mapping.iova()), right, "map {maps}");
            io.unmap(mapping)?;
            maps += 1;
        }
        assert_eq!(translation(iova), None, "unmap {rounds} left a translation");
    }
    let hits = HITS.swap(0, Ordering::Relaxed);
    println!("vector {vector}: {rounds} interrupts unmapped, {hits} hit one of {maps} maps");
    Ok(())
}
