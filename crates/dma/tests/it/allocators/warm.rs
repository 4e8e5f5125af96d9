// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! No allocation once warm.

use crate::allocators::{counting::calls, rig::*};
use ioatlas_dma::iova::*;

pub fn nothing_is_allocated_once_warm(config: AllocatorConfig) {
    let rig = Rig::board(config, 1, 1 << 16);
    let mut held = Vec::with_capacity(600);
    // bursts of all classes and of sizes beyond, from two CPUs to two others and back
    let mut round = |nth: usize| {
        for step in 0..600 {
            move_to((nth + step) % CPUS);
            held.push(rig.alloc(1 << (step % 7)).unwrap());
        }
        for (step, alloc) in held.drain(..).enumerate() {
            rig.free((nth / 8 + step / 2) % CPUS, alloc);
        }
    };
    let cold = calls();
    (0..32).for_each(&mut round);
    let warm = calls();
    assert!(warm > cold, "the counter counts: the slab has grown");
    (32..64).for_each(&mut round);
    assert_eq!(calls(), warm, "{rig}");
    rig.drain();
    (64..96).for_each(&mut round);
    assert_eq!(calls(), warm, "after a drain: {rig}");
    rig.check(0);
}
