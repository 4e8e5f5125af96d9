// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Arbitrary bytes as a trace: an error or a result, never a panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = ioatlas_fuzz_targets::capture::trace(data);
});
