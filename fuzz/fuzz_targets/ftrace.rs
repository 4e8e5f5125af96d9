// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Arbitrary bytes as a capture of this kind: an error or a trace, never a panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ =
        ioatlas_fuzz_targets::capture::capture(Some(ioatlas_iotlb::import::Format::Ftrace), data);
});
