// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Arbitrary bytes as memory, register writes and accesses of a software unit, judged by a second
//! walk.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ioatlas_fuzz_targets::unit::unit(data);
});
