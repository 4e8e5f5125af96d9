// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Arbitrary bytes as the ACPI table that announces remapping units, and as the memory where a BIOS
//! leaves the pointer to it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ioatlas_fuzz_targets::dmar::dmar(data);
});
