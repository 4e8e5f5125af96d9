// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Arbitrary bytes as what is done to device IOTLBs.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ioatlas_fuzz_targets::cache::cache(data);
});
