// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where the frames of typed buffers go, and when.

use crate::bounce::patchy::*;
use ioatlas_dma::{dma_api::*, domain::*, units::*};
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn a_buffer_that_no_addresses_hold_takes_no_frame() {
    let rig = Rig::new(PolicyConfig::Strict);
    let client = rig.client(Placement::Never);
    rig.frames_left(2048);
    for len in [1 << 52, (1 << 48) + 1] {
        let none = client.buffer::<ToDevice>(ByteCount(len));
        assert!(none.is_none(), "{len}");
        let left = rig.p.frames_left.load(Relaxed);
        assert_eq!(left, 2048, "{len}: took frames before it was refused");
    }
    let mut narrow = ClientConfig::default();
    narrow.limits.end = Some(IovaPage(4));
    let narrow = rig.dma.client(narrow).unwrap();
    assert!(narrow.buffer::<ToDevice>(ByteCount(5 * GRANULE)).is_none());
    assert_eq!(rig.p.frames_left.load(Relaxed), 2048);
    assert!(narrow.buffer::<ToDevice>(ByteCount(4 * GRANULE)).is_some());
}
