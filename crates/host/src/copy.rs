// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The CPU's way to the arena, byte by byte: what may race with devices is moved by assembly, or by
//! relaxed atomic accesses.
//!
//! To the language an assembly block is code it knows nothing of, so it may do what a sequence of
//! relaxed atomic accesses to single bytes may; that is all that string instructions and moves of a
//! register do here. A plain copy of memory that others write would be a data race.

use super::Host;
#[cfg(target_arch = "x86_64")]
use super::wide;
#[cfg(not(target_arch = "x86_64"))]
use super::{Ordering, atomic::AtomicU8};
use ioatlas_dma::{
    platform::{NotMemoryError, Platform},
    units::*,
};

/// A platform whose physical memory is memory of this process: it says where the bytes are,
/// and [`copy_in_process`](crate::copy_in_process) copies them.
///
/// # Safety
/// What [`bytes`](Self::bytes) gives is a pointer to as many bytes as were asked for, which may be
/// read and written as long as the platform lives. No code has references to them but to atomic
/// words and the like, so that accesses may race.
pub unsafe trait InProcess: Platform {
    /// Where the bytes of `range` are, all of them.
    ///
    /// # Errors
    /// [`NotMemoryError`], if any of them is not.
    fn bytes(&self, range: PhysRange) -> Result<*mut u8, NotMemoryError>;
}

// SAFETY: the arena lives as long as `self`, and is atomic words.
unsafe impl InProcess for Host {
    #[inline]
    fn bytes(&self, range: PhysRange) -> Result<*mut u8, NotMemoryError> {
        let len = size_of_val(self.words.frames()) as u64;
        let end = range.addr.0.checked_add(range.len.0);
        if end.is_none_or(|end| end > len) {
            return Err(NotMemoryError(range));
        }
        let base = self.words.frames().as_ptr().cast::<u8>().cast_mut();
        // inside, or just behind: the end was checked, and what is mapped has less than
        // `isize::MAX` bytes
        Ok(base.wrapping_add(range.addr.0 as usize))
    }
}

/// Implements [`CopyMemory`](ioatlas_dma::platform::CopyMemory) for a platform that is
/// [`InProcess`](crate::copy::InProcess), by what the module [`copy`](mod@crate::copy) has. It is a
/// macro, since no crate may implement another one's trait for all types that have a third.
#[macro_export]
macro_rules! copy_in_process {
    ($platform:ty) => {
        const _: () = {
            use $crate::copy::{InProcess, copy, named::*, take, zero};

            // SAFETY: bytes that may race, by the contract of `InProcess`, are moved by assembly or
            // atomically, each once, after both ends have been looked up.
            unsafe impl CopyMemory for $platform {
                #[inline]
                fn is_memory(&self, range: PhysRange) -> bool {
                    self.bytes(range).is_ok()
                }
                #[inline]
                fn copy(
                    &self,
                    _: Authority,
                    from: PhysRange,
                    to: PhysAddr,
                ) -> Result<(), NotMemoryError> {
                    let source = self.bytes(from)?;
                    let target = self.bytes(PhysRange::new(to, from.len))?;
                    // SAFETY: both are so many bytes that may race, by the contract of `bytes`.
                    unsafe { copy(source, target, from.len.0 as usize) };
                    Ok(())
                }
                #[inline]
                fn zero(&self, _: Authority, range: PhysRange) -> Result<(), NotMemoryError> {
                    let target = self.bytes(range)?;
                    // SAFETY: as above.
                    unsafe { zero(target, range.len.0 as usize) };
                    Ok(())
                }
                #[inline]
                fn take(
                    &self,
                    _: Authority,
                    from: PhysRange,
                    to: PhysAddr,
                ) -> Result<(), NotMemoryError> {
                    let source = self.bytes(from)?;
                    let target = self.bytes(PhysRange::new(to, from.len))?;
                    // SAFETY: as above.
                    unsafe { take(source, target, from.len.0 as usize) };
                    Ok(())
                }
                fn read(
                    &self,
                    _: Authority,
                    from: PhysAddr,
                    into: &mut [u8],
                ) -> Result<(), NotMemoryError> {
                    let len = ByteCount(into.len() as u64);
                    let source = self.bytes(PhysRange::new(from, len))?;
                    // SAFETY: as above; the target is borrowed for writing.
                    unsafe { copy(source, into.as_mut_ptr(), into.len()) };
                    Ok(())
                }
                fn write(
                    &self,
                    _: Authority,
                    from: &[u8],
                    to: PhysAddr,
                ) -> Result<(), NotMemoryError> {
                    let len = ByteCount(from.len() as u64);
                    let target = self.bytes(PhysRange::new(to, len))?;
                    // SAFETY: as above; the source is borrowed for reading, and nothing is written
                    // there.
                    unsafe { copy(from.as_ptr(), target, from.len()) };
                    Ok(())
                }
            }
        };
    };
}

/// Names that [`copy_in_process`](crate::copy_in_process) expands to.
#[doc(hidden)]
pub mod named {
    pub use ioatlas_dma::{
        platform::{Authority, CopyMemory, NotMemoryError},
        units::{ByteCount, PhysAddr, PhysRange},
    };
}

copy_in_process!(Host);

/// Up to so many bytes are moved 16 at a time: to start a string instruction takes as long as that.
#[cfg(target_arch = "x86_64")]
const SHORT: usize = 256;

/// Moves one piece of its own size, with one load and one store.
#[cfg(target_arch = "x86_64")]
macro_rules! piece {
    ($load:literal, $store:literal, $class:ident, $from:expr, $to:expr) => {
        core::arch::asm!($load, $store, from = in(reg) $from, to = in(reg) $to, piece = out($class) _,
            options(nostack, preserves_flags))
    };
}

/// Copies bytes that may be accessed by others meanwhile.
///
/// # Safety
/// Both pointers are of `len` bytes that may be read, and written; others access them atomically
/// only, if at all.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn copy(mut from: *const u8, mut to: *mut u8, mut len: usize) {
    if len > SHORT && wide::is_better() {
        // SAFETY: the caller's.
        let done = unsafe { wide::copy(from, to, len) };
        (from, to, len) = (from.wrapping_add(done), to.wrapping_add(done), len - done);
    } else if len > SHORT {
        // SAFETY: the caller's; the direction flag is clear by the calling convention.
        unsafe {
            core::arch::asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
                options(nostack, preserves_flags));
        }
        return;
    }
    let mut at = 0;
    while at + 16 <= len {
        let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
        // SAFETY: 16 bytes from `at` are inside.
        unsafe {
            piece!(
                "movdqu {piece}, [{from}]",
                "movdqu [{to}], {piece}",
                xmm_reg,
                from,
                to
            );
        }
        at += 16;
    }
    // each byte once: what is left is a sum of different powers of two
    if len & 15 != 0 {
        // SAFETY: as many bytes are left.
        unsafe { copy_rest(from.wrapping_add(at), to.wrapping_add(at), len & 15) };
    }
}

/// # Safety
/// As [`copy`], of fewer than 16 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn copy_rest(mut from: *const u8, mut to: *mut u8, len: usize) {
    let mut step = |len: usize| {
        let here = (from, to);
        (from, to) = (from.wrapping_add(len), to.wrapping_add(len));
        here
    };
    // SAFETY: the pieces are of `len` bytes together, by the bits of its number.
    unsafe {
        if len & 8 != 0 {
            let (from, to) = step(8);
            piece!(
                "mov {piece}, [{from}]",
                "mov [{to}], {piece}",
                reg,
                from,
                to
            );
        }
        if len & 4 != 0 {
            let (from, to) = step(4);
            piece!(
                "mov {piece:e}, [{from}]",
                "mov [{to}], {piece:e}",
                reg,
                from,
                to
            );
        }
        if len & 2 != 0 {
            let (from, to) = step(2);
            piece!(
                "mov {piece:x}, [{from}]",
                "mov [{to}], {piece:x}",
                reg,
                from,
                to
            );
        }
        if len & 1 != 0 {
            let (from, to) = step(1);
            piece!(
                "mov {piece}, [{from}]",
                "mov [{to}], {piece}",
                reg_byte,
                from,
                to
            );
        }
    }
}

/// Zeroes bytes that may be accessed by others meanwhile.
///
/// # Safety
/// That of [`copy`], for writing alone.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn zero(mut at: *mut u8, mut len: usize) {
    if len > SHORT && wide::is_better() {
        // SAFETY: the caller's.
        let done = unsafe { wide::zero(at, len) };
        (at, len) = (at.wrapping_add(done), len - done);
    } else if len > SHORT {
        // SAFETY: as above.
        unsafe { zero_by_string(at, len) };
        return;
    }
    if len & 15 != 0 {
        // SAFETY: as above.
        unsafe { zero_by_string(at, len) };
        return;
    }
    let mut done = 0;
    while done < len {
        let at = at.wrapping_add(done);
        // SAFETY: a multiple of 16 bytes are zeroed, all of them inside.
        unsafe {
            core::arch::asm!("pxor {zero}, {zero}", "movdqu [{at}], {zero}", at = in(reg) at, zero = out(xmm_reg) _,
                options(nostack, preserves_flags));
        }
        done += 16;
    }
}

/// # Safety
/// That of [`zero`], which calls it.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn zero_by_string(at: *mut u8, len: usize) {
    // SAFETY: the caller's; the direction flag is clear by the calling convention.
    unsafe {
        core::arch::asm!("rep stosb", inout("rcx") len => _, inout("rdi") at => _, in("al") 0u8,
            options(nostack, preserves_flags));
    }
}

/// Copies bytes that may be accessed by others meanwhile, and zeroes them where they were. Where
/// there are wide registers it is one pass: the second stores go to lines that the loads are just
/// bringing, and hardly cost time beside the copy.
///
/// # Safety
/// As [`copy`]; what `from` points to may be written, too.
#[inline]
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut))]
pub unsafe fn take(mut from: *mut u8, mut to: *mut u8, mut len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len > SHORT && wide::is_there() {
        // SAFETY: the caller's.
        let done = unsafe { wide::take(from, to, len) };
        (from, to, len) = (from.wrapping_add(done), to.wrapping_add(done), len - done);
        if len == 0 {
            return;
        }
    }
    // SAFETY: as above.
    unsafe {
        copy(from, to, len);
        zero(from, len);
    }
}

/// As on x86, a byte at a time.
///
/// # Safety
/// The same as on x86.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    for at in 0..len {
        // SAFETY: inside, by the caller.
        let (from, to) = unsafe {
            (
                AtomicU8::from_ptr(from.add(at).cast_mut()),
                AtomicU8::from_ptr(to.add(at)),
            )
        };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// As on x86, a byte at a time.
///
/// # Safety
/// The same as on x86.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn zero(at: *mut u8, len: usize) {
    for byte in 0..len {
        // SAFETY: inside, by the caller.
        unsafe { AtomicU8::from_ptr(at.add(byte)) }.store(0, Ordering::Relaxed);
    }
}
