// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Blocks of bytes by wide registers, for CPUs whose string instructions are slow.
//!
//! A CPU that says so (ERMS) moves bytes by `rep movsb` as fast as by anything. One that does not
//! takes a step for each byte, as emulators do: then 512 bytes a turn through sixteen registers of
//! 32 are better, where there are such. Copying and zeroing in one pass, which no string
//! instruction does, goes by them on every CPU that has them. As assembly, for the reason that the
//! module `copy` gives.
#![allow(clippy::disallowed_types)] // part of a platform

use core::arch::{asm, x86_64::__cpuid_count};
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes that one turn moves.
pub const BLOCK: usize = 512;

const UNKNOWN: u8 = 0;
/// There are no wide registers.
const NARROW: u8 = 1;
/// There are; string instructions are as good.
const STRINGS: u8 = 2;
const WIDE: u8 = 3;
/// What this CPU is better with. Each thread that finds out writes the same.
static BETTER: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether blocks are better moved by [`copy`] and [`zero`].
#[inline]
pub fn is_better() -> bool {
    known() == WIDE
}

/// Whether there are wide registers, for [`take`].
#[inline]
pub fn is_there() -> bool {
    known() != NARROW
}

#[inline]
fn known() -> u8 {
    match BETTER.load(Ordering::Relaxed) {
        UNKNOWN => find_out(),
        known => known,
    }
}

#[cold]
fn find_out() -> u8 {
    let there = std::is_x86_feature_detected!("avx2");
    // leaf 7, EBX bit 9 is ERMS (Intel SDM vol. 2, CPUID); CPUs with AVX2 have leaf 7
    let wide = there && {
        #[allow(unused_unsafe, reason = "not all toolchains have it as safe")]
        // SAFETY: every CPU of this architecture has the instruction.
        let leaf = unsafe { __cpuid_count(7, 0) };
        leaf.ebx >> 9 & 1 == 0
    };
    let found = match (there, wide) {
        (false, _) => NARROW,
        (true, false) => STRINGS,
        (true, true) => WIDE,
    };
    BETTER.store(found, Ordering::Relaxed);
    found
}

/// Copies as many whole blocks as `len` has; returns how many bytes these are.
///
/// # Safety
/// [`is_better`] said so. As to the pointers, see `copy` of the module `copy`.
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> usize {
    let bytes = len / BLOCK * BLOCK;
    if bytes > 0 {
        // SAFETY: whole blocks inside; AVX is there. The upper halves are left clean, as compiled
        // code expects.
        unsafe {
            asm!(
                "2:",
                "vmovdqu ymm0, [{from}]",
                "vmovdqu ymm1, [{from} + 32]",
                "vmovdqu ymm2, [{from} + 64]",
                "vmovdqu ymm3, [{from} + 96]",
                "vmovdqu ymm4, [{from} + 128]",
                "vmovdqu ymm5, [{from} + 160]",
                "vmovdqu ymm6, [{from} + 192]",
                "vmovdqu ymm7, [{from} + 224]",
                "vmovdqu ymm8, [{from} + 256]",
                "vmovdqu ymm9, [{from} + 288]",
                "vmovdqu ymm10, [{from} + 320]",
                "vmovdqu ymm11, [{from} + 352]",
                "vmovdqu ymm12, [{from} + 384]",
                "vmovdqu ymm13, [{from} + 416]",
                "vmovdqu ymm14, [{from} + 448]",
                "vmovdqu ymm15, [{from} + 480]",
                "vmovdqu [{to}], ymm0",
                "vmovdqu [{to} + 32], ymm1",
                "vmovdqu [{to} + 64], ymm2",
                "vmovdqu [{to} + 96], ymm3",
                "vmovdqu [{to} + 128], ymm4",
                "vmovdqu [{to} + 160], ymm5",
                "vmovdqu [{to} + 192], ymm6",
                "vmovdqu [{to} + 224], ymm7",
                "vmovdqu [{to} + 256], ymm8",
                "vmovdqu [{to} + 288], ymm9",
                "vmovdqu [{to} + 320], ymm10",
                "vmovdqu [{to} + 352], ymm11",
                "vmovdqu [{to} + 384], ymm12",
                "vmovdqu [{to} + 416], ymm13",
                "vmovdqu [{to} + 448], ymm14",
                "vmovdqu [{to} + 480], ymm15",
                "add {from}, 512",
                "add {to}, 512",
                "sub {left}, 512",
                "jnz 2b",
                "vzeroupper",
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                left = inout(reg) bytes => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nostack)
            );
        }
    }
    bytes
}

/// Zeroes as many whole blocks as `len` has; returns how many bytes these are.
///
/// # Safety
/// That of [`copy`], for writing alone.
pub unsafe fn zero(at: *mut u8, len: usize) -> usize {
    let bytes = len / BLOCK * BLOCK;
    if bytes > 0 {
        // SAFETY: as there.
        unsafe {
            asm!(
                "vpxor ymm0, ymm0, ymm0",
                "2:",
                "vmovdqu [{at}], ymm0",
                "vmovdqu [{at} + 32], ymm0",
                "vmovdqu [{at} + 64], ymm0",
                "vmovdqu [{at} + 96], ymm0",
                "vmovdqu [{at} + 128], ymm0",
                "vmovdqu [{at} + 160], ymm0",
                "vmovdqu [{at} + 192], ymm0",
                "vmovdqu [{at} + 224], ymm0",
                "vmovdqu [{at} + 256], ymm0",
                "vmovdqu [{at} + 288], ymm0",
                "vmovdqu [{at} + 320], ymm0",
                "vmovdqu [{at} + 352], ymm0",
                "vmovdqu [{at} + 384], ymm0",
                "vmovdqu [{at} + 416], ymm0",
                "vmovdqu [{at} + 448], ymm0",
                "vmovdqu [{at} + 480], ymm0",
                "add {at}, 512",
                "sub {left}, 512",
                "jnz 2b",
                "vzeroupper",
                at = inout(reg) at => _,
                left = inout(reg) bytes => _,
                // `vzeroupper` changes all of them
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nostack)
            );
        }
    }
    bytes
}

/// A turn of [`take`].
const TAKEN: usize = 256;

/// Copies as many blocks of 256 bytes as `len` has, and zeroes them where they were; returns how
/// many bytes these are.
///
/// # Safety
/// [`is_there`] said so. As to the pointers, see `take` of the module `copy`.
pub unsafe fn take(from: *mut u8, to: *mut u8, len: usize) -> usize {
    let bytes = len / TAKEN * TAKEN;
    if bytes > 0 {
        // SAFETY: as there.
        unsafe {
            asm!(
                "vpxor ymm8, ymm8, ymm8",
                "2:",
                "vmovdqu ymm0, [{from}]",
                "vmovdqu ymm1, [{from} + 32]",
                "vmovdqu ymm2, [{from} + 64]",
                "vmovdqu ymm3, [{from} + 96]",
                "vmovdqu ymm4, [{from} + 128]",
                "vmovdqu ymm5, [{from} + 160]",
                "vmovdqu ymm6, [{from} + 192]",
                "vmovdqu ymm7, [{from} + 224]",
                "vmovdqu [{to}], ymm0",
                "vmovdqu [{to} + 32], ymm1",
                "vmovdqu [{to} + 64], ymm2",
                "vmovdqu [{to} + 96], ymm3",
                "vmovdqu [{to} + 128], ymm4",
                "vmovdqu [{to} + 160], ymm5",
                "vmovdqu [{to} + 192], ymm6",
                "vmovdqu [{to} + 224], ymm7",
                "vmovdqu [{from}], ymm8",
                "vmovdqu [{from} + 32], ymm8",
                "vmovdqu [{from} + 64], ymm8",
                "vmovdqu [{from} + 96], ymm8",
                "vmovdqu [{from} + 128], ymm8",
                "vmovdqu [{from} + 160], ymm8",
                "vmovdqu [{from} + 192], ymm8",
                "vmovdqu [{from} + 224], ymm8",
                "add {from}, 256",
                "add {to}, 256",
                "sub {left}, 256",
                "jnz 2b",
                "vzeroupper",
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                left = inout(reg) bytes => _,
                // `vzeroupper` changes all of them
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nostack)
            );
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_are_moved_and_nothing_else() {
        if !std::is_x86_feature_detected!("avx2") {
            return; // there is nothing to test on this CPU
        }
        let from: Vec<u8> = (0..1100u32).map(|n| (n * 7 + 1) as u8).collect();
        for (len, whole) in [(0, 0), (511, 0), (512, 512), (700, 512), (1024, 1024)] {
            let mut to = vec![0xee; 1100];
            // SAFETY: AVX is there, and both are longer than `len`.
            let moved = unsafe { copy(from[3..].as_ptr(), to[5..].as_mut_ptr(), len) };
            assert_eq!(moved, whole);
            assert_eq!(to[5..5 + whole], from[3..3 + whole]);
            let rest = |to: &[u8]| {
                let (before, after) = (&to[..5], &to[5 + whole..]);
                before.iter().chain(after).all(|byte| *byte == 0xee)
            };
            assert!(rest(&to), "{len}");
            // SAFETY: as above.
            let zeroed = unsafe { zero(to[5..].as_mut_ptr(), len) };
            assert_eq!(zeroed, whole);
            assert!(to[5..5 + whole].iter().all(|byte| *byte == 0) && rest(&to));
        }
    }

    #[test]
    fn whole_blocks_are_taken_and_nothing_else() {
        if !std::is_x86_feature_detected!("avx2") {
            return; // there is nothing to test on this CPU
        }
        let full: Vec<u8> = (0..1100u32).map(|n| (n * 7 + 1) as u8 | 1).collect();
        for (len, whole) in [(0, 0), (255, 0), (256, 256), (700, 512), (1024, 1024)] {
            let (mut from, mut to) = (full.clone(), vec![0xee; 1100]);
            // SAFETY: AVX is there, and both are longer than `len`.
            let taken = unsafe { take(from[3..].as_mut_ptr(), to[5..].as_mut_ptr(), len) };
            assert_eq!(taken, whole);
            assert_eq!(to[5..5 + whole], full[3..3 + whole]);
            assert!(to[..5].iter().chain(&to[5 + whole..]).all(|b| *b == 0xee));
            assert!(from[3..3 + whole].iter().all(|byte| *byte == 0));
            assert_eq!(
                (&from[..3], &from[3 + whole..]),
                (&full[..3], &full[3 + whole..])
            );
        }
    }
}
