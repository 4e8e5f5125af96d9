// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Arbitrary bytes as bus accesses to the register block of a software unit.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ioatlas_fuzz_targets::unit::mmio(data);
});
