// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a driver may do wrong: a typed error each time, on the unit under attack; the device
//! reaches nothing by it, and nothing is left behind.

use crate::bounce::{
    rig::*,
    suite::{NIC, designs, is_strict},
};
use crate::lend;
use ioatlas_dma::{
    dma_api::*,
    domain::{BufferError, DomainConfig},
    units::*,
};
use ioatlas_host::Host;
use std::sync::Arc;

const PLACEMENTS: [Placement; 6] = [
    Placement::Never,
    Placement::Always,
    Placement::Untrusted {
        whole_up_to: ByteCount(4096),
    },
    Placement::Below(ByteCount(8192)),
    Placement::Adaptive,
    Placement::SingleUse,
];
const DIRECTIONS: [Direction; 3] = [
    Direction::ToDevice,
    Direction::FromDevice,
    Direction::Bidirectional,
];

fn strict() -> DomainConfig {
    let strict = designs().into_iter().find(is_strict);
    strict.expect("a strict design")
}

fn range(at: u64, len: u64) -> PhysRange {
    PhysRange::new(PhysAddr(at), ByteCount(len))
}

#[test]
fn lists_that_are_none_are_refused_whatever_the_placement_and_direction() {
    for placement in PLACEMENTS {
        let mut rig = Rig::<Host>::new(256, strict(), tight(ON_DEMAND));
        let memory = rig.memory(2).0;
        let client = rig.client(placement);
        let used = rig.frames_in_use();
        let good = range(memory, GRANULE);
        for direction in DIRECTIONS {
            let refused = |list: &[PhysRange]| match client.map_sg(lend(list), direction) {
                Err(DmaMapError::Buffer(why)) => why,
                other => panic!("{placement:?}: {other:?}"),
            };
            assert_eq!(refused(&[]), BufferError::NoSegments);
            for segment in 0..3 {
                let mut list = [good; 3];
                list[segment].len = ByteCount(0);
                assert_eq!(refused(&list), BufferError::Empty { segment });
            }
            let enormous = [
                range(memory, u64::MAX),         // beyond the last address
                range(u64::MAX, 1),              // up to it
                range(memory, (1 << 52) + 1),    // beyond physical addresses
                range((1 << 52) - 1, 2),         // across their end
                range(u64::MAX - 4095, GRANULE), // wrapping to 0
            ];
            for buffer in enormous {
                let segment = 1;
                assert_eq!(
                    refused(&[good, buffer]),
                    BufferError::Overflow { segment, buffer },
                    "{placement:?}"
                );
            }
            // each is fine, their sum is not
            let half = range(0, 1 << 51);
            let sum = [half, half, good];
            assert_eq!(
                refused(&sum),
                BufferError::Overflow {
                    segment: 2,
                    buffer: good
                }
            );
        }
        let none: Option<CpuBuffer<_, ToDevice>> = client.buffer(ByteCount(0));
        assert!(none.is_none());
        assert_eq!(rig.frames_in_use(), used, "{placement:?}: nothing is kept");
        drop(client);
        rig.end("bad lists");
    }
}

#[test]
fn a_direction_or_length_that_disagrees_changes_nothing() {
    for placement in PLACEMENTS {
        let mut rig = Rig::<Host>::new(256, strict(), tight(ON_DEMAND));
        let memory = rig.memory(1);
        let client = rig.client(placement);
        let buffer = PhysRange::new(memory, ByteCount(GRANULE));
        let len = buffer.len;
        for mapped in DIRECTIONS {
            rig.fill(buffer, 1);
            let list: Arc<[PhysRange]> = [buffer].into();
            let mapping = client.map_sg(lend(list), mapped).expect("room");
            let iova = client.into_raw(mapping).expect("memory").0;
            let writes = mapped != Direction::ToDevice;
            rig.device_write(NIC, iova, &[0xd0; 4096]);
            let whole = Span::new(ByteCount(0), len);
            let before = rig.peek(memory, GRANULE);
            for given in DIRECTIONS.into_iter().filter(|d| *d != mapped) {
                let wrong = RawDmaError::WrongDirection {
                    iova,
                    mapped,
                    given,
                };
                assert_eq!(client.unmap_raw(iova, len, given), Err(wrong));
                for side in [SyncFor::Cpu, SyncFor::Device] {
                    let wrong = RawDmaError::WrongDirection {
                        iova,
                        mapped,
                        given,
                    };
                    assert_eq!(client.sync_raw(iova, whole, given, side), Err(wrong));
                }
            }
            for given in [ByteCount(0), ByteCount(4095), ByteCount(u64::MAX)] {
                let wrong = RawDmaError::WrongLength {
                    iova,
                    mapped: len,
                    given,
                };
                assert_eq!(client.unmap_raw(iova, given, mapped), Err(wrong));
            }
            let wrong = RawDmaError::WrongLength {
                iova,
                mapped: len,
                given: ByteCount(1),
            };
            assert_eq!(client.unmap_raw(iova, ByteCount(1), None), Err(wrong));
            assert_eq!(
                rig.peek(memory, GRANULE),
                before,
                "{placement:?}: a refused call moved bytes"
            );
            // it lives on, and ends as it should
            assert_eq!(
                rig.device_write(NIC, iova, &[0xd1; 4096]),
                if writes { 4096 } else { 0 },
                "{placement:?}"
            );
            assert_eq!(client.unmap_raw(iova, len, mapped), Ok(()));
            let expected = if writes { 0xd1 } else { 1 };
            assert_eq!(rig.peek(memory, GRANULE), [expected; 4096], "{placement:?}");
            let again = client.unmap_raw(iova, len, mapped);
            assert_eq!(again, Err(RawDmaError::NotMapped(iova)), "{placement:?}");
        }
        drop(client);
        rig.end("disagreement");
    }
}

#[test]
fn a_sync_outside_the_mapping_moves_no_byte() {
    for placement in PLACEMENTS {
        let mut rig = Rig::<Host>::new(256, strict(), tight(ON_DEMAND));
        let memory = rig.memory(3);
        let client = rig.client(placement);
        let other = rig.client(Placement::Never);
        rig.fill(PhysRange::new(memory, ByteCount(3 * GRANULE)), 0xee);
        let buffer = PhysRange::new(memory, ByteCount(2 * GRANULE));
        let len = buffer.len;
        rig.fill(buffer, 1);
        let mapping = client
            .map_single(lend(buffer), Direction::Bidirectional)
            .expect("room");
        rig.device_write(NIC, mapping.iova(), &[0xd0; 8192]);
        let (before, device) = (
            rig.peek(memory, 3 * GRANULE),
            rig.device_read(NIC, mapping.iova(), 8192),
        );
        let outside = [
            (0, 8193),
            (8192, 1),
            (8193, 0),
            (u64::MAX, 0),
            (u64::MAX, 1),
            (1, u64::MAX),
            (4096, 4097),
        ];
        for (at, bytes) in outside {
            let span = Span::new(ByteCount(at), ByteCount(bytes));
            let error = Err(SyncError::Outside { span, len });
            assert_eq!(client.sync_for_cpu(&mapping, span), error, "{placement:?}");
            assert_eq!(
                client.sync_for_device(&mapping, span),
                error,
                "{placement:?}"
            );
        }
        if placement != Placement::Never {
            let span = Span::new(ByteCount(0), len);
            let iova = mapping.iova();
            let foreign = Err(SyncError::Foreign { iova });
            assert_eq!(other.sync_for_cpu(&mapping, span), foreign);
            assert_eq!(other.sync_for_device(&mapping, span), foreign);
        }
        // nothing is a span, too
        for at in [0, 100, 8192] {
            let span = Span::new(ByteCount(at), ByteCount(0));
            assert_eq!(client.sync_for_cpu(&mapping, span), Ok(()));
            assert_eq!(client.sync_for_device(&mapping, span), Ok(()));
        }
        assert_eq!(rig.peek(memory, 3 * GRANULE), before, "{placement:?}");
        let seen = rig.device_read(NIC, mapping.iova(), 8192);
        assert_eq!(seen, device, "{placement:?}");
        client.unmap(mapping).expect("unmapped");
        drop((client, other));
        rig.end("syncs outside");
    }
}
