// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Arbitrary bytes as a hostile front end and its guest, against a vhost-user back end with a
//! device IOTLB.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ioatlas_fuzz_targets::stream::stream(data);
});
