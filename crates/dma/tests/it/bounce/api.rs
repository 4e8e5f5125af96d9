// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The interfaces: bad input, syncs, addresses in place of tokens, typed buffers, the debug layer.

#![allow(clippy::disallowed_types)] // of the clocks here

use crate::bounce::rig::{Rig, Tables};
use crate::lend;
use ioatlas_dma::{
    dma_api::*,
    domain::{BufferError, MapError},
    platform::*,
    table::InstallCause,
    units::*,
};
use ioatlas_host::Host;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

const EVERY: [Placement; 5] = [
    Placement::Never,
    Placement::Always,
    Placement::Untrusted {
        whole_up_to: ByteCount(4096),
    },
    Placement::Below(ByteCount(8192)),
    Placement::SingleUse,
];

#[test]
fn what_cannot_be_a_buffer_is_refused_by_every_placement() {
    let rig = Rig::new(DmaConfig::default());
    let memory = rig.memory(1);
    let used = rig.p.frames_in_use();
    for placement in EVERY {
        let client = rig.client(placement);
        let refused = |list: &[PhysRange]| {
            let refused = client.map_sg(lend(list), Direction::Bidirectional);
            match refused.unwrap_err() {
                DmaMapError::Buffer(why) => why,
                other => panic!("{placement:?}: {other}"),
            }
        };
        let range = |at, len| PhysRange::new(PhysAddr(at), ByteCount(len));
        let good = range(memory.0, 4096);
        assert_eq!(refused(&[]), BufferError::NoSegments);
        assert_eq!(
            refused(&[range(memory.0, 0)]),
            BufferError::Empty { segment: 0 }
        );
        assert_eq!(
            refused(&[good, range(memory.0, 0)]),
            BufferError::Empty { segment: 1 }
        );
        for bad in [
            range(memory.0, u64::MAX),
            range(u64::MAX, 2),
            range(1 << 51, 1 << 51 | 1),
        ] {
            let segment = 1;
            assert_eq!(
                refused(&[good, bad]),
                BufferError::Overflow {
                    segment,
                    buffer: bad
                }
            );
        }
        // beyond memory, but no further than addresses go
        let hole = range(1 << 40, 100);
        match client.map_single(lend(hole), Direction::ToDevice) {
            Ok(mapping) => {
                assert!(!mapping.is_bounced(), "{placement:?}");
                client.unmap(mapping).unwrap();
            }
            // by a translator that looks
            Err(DmaMapError::Direct(MapError::Install(error))) => {
                assert!(matches!(error.cause, InstallCause::NotMemory(_)), "{error}");
            }
            Err(error) => assert_eq!(error, NotMemoryError(hole).into(), "{placement:?}"),
        }
        // as large as it may be: no allocation may be tried by its length
        let huge = client.map_single(lend(range(0, 1 << 52)), Direction::FromDevice);
        assert!(huge.is_err(), "{placement:?}");
    }
    let usage = rig.dma.audit().unwrap();
    assert!(usage.iter().all(|pool| pool.memory.0 == 0));
    rig.domain.audit().unwrap();
    let tables = rig.p.frames_in_use() - used;
    assert!(tables < 20, "{tables} frames");
}

#[test]
fn syncs_move_their_span_and_nothing_else() {
    for placement in EVERY {
        let rig = Rig::new(DmaConfig::default());
        let client = rig.client(placement);
        let memory = rig.memory(3);
        let buffer = PhysRange::new(PhysAddr(memory.0 + 1000), ByteCount(10_000));
        let fill = |byte: u8| rig.poke(buffer.addr, &vec![byte; 10_000]);
        let all = |at: &[u8], spans: [(usize, u8); 3]| {
            let mut from = 0;
            for (to, byte) in spans {
                let same = at[from..to].iter().all(|b| *b == byte);
                assert!(same, "{placement:?}: bytes {from} to {to} are not {byte}");
                from = to;
            }
        };
        let span = Span::new(ByteCount(3000), ByteCount(4321));

        fill(1);
        let mapping = client
            .map_single(lend(buffer), Direction::Bidirectional)
            .unwrap();
        let device = |from: u64, len| -> Vec<u8> {
            let read = rig.device_read(Iova(mapping.iova().0 + from), len);
            read.into_iter().map(|byte| byte.unwrap()).collect()
        };
        fill(2);
        client.sync_for_device(&mapping, span).unwrap();
        let copied = |byte: u8| if mapping.is_bounced() { byte } else { 2 };
        if let Placement::Never | Placement::Always | Placement::SingleUse = placement {
            all(
                &device(0, 10_000),
                [(3000, copied(1)), (7321, 2), (10_000, copied(1))],
            );
        }
        rig.device_write(mapping.iova(), &vec![3; 10_000]);
        client.sync_for_cpu(&mapping, span).unwrap();
        let kept = if mapping.is_bounced() { 2 } else { 3 };
        if let Placement::Never | Placement::Always | Placement::SingleUse = placement {
            all(
                &rig.peek(buffer.addr, 10_000),
                [(3000, kept), (7321, 3), (10_000, kept)],
            );
        }
        for (at, len) in [(0, 10_001), (10_001, 0), (u64::MAX, 2), (9_999, 2)] {
            let span = Span::new(ByteCount(at), ByteCount(len));
            let outside = SyncError::Outside {
                span,
                len: ByteCount(10_000),
            };
            assert_eq!(client.sync_for_cpu(&mapping, span), Err(outside));
            assert_eq!(client.sync_for_device(&mapping, span), Err(outside));
        }
        client.unmap(mapping).unwrap();
        all(
            &rig.peek(buffer.addr, 10_000),
            [(0, 3), (1, 3), (10_000, 3)],
        );
        rig.domain.audit().unwrap();
    }
}

fn raw(
    client: &Client<Host, Tables, impl Watch<Host>>,
    buffer: PhysRange,
    direction: Direction,
) -> Iova {
    let list: Arc<[PhysRange]> = [buffer].into();
    let mapping = client.map_sg(lend(list), direction).unwrap();
    client.into_raw(mapping).expect("memory").0
}

#[test]
fn the_address_api_takes_what_was_given_up_once_and_as_it_was() {
    let rig = Rig::new(DmaConfig::default());
    let memory = rig.memory(2);
    let buffer = PhysRange::new(memory, ByteCount(100));
    let (len, to) = (ByteCount(100), Direction::ToDevice);
    for placement in EVERY {
        let client = rig.client(placement);
        let iova = raw(&client, buffer, to);
        let other = raw(
            &client,
            PhysRange::new(memory, ByteCount(50)),
            Direction::FromDevice,
        );
        assert_eq!(
            client.unmap_raw(iova, ByteCount(101), to),
            Err(RawDmaError::WrongLength {
                iova,
                mapped: len,
                given: ByteCount(101)
            })
        );
        let given = Direction::FromDevice;
        assert_eq!(
            client.unmap_raw(iova, len, given),
            Err(RawDmaError::WrongDirection {
                iova,
                mapped: to,
                given
            })
        );
        let span = Span::new(ByteCount(50), ByteCount(51));
        assert_eq!(
            client.sync_raw(iova, span, to, SyncFor::Device),
            Err(SyncError::Outside { span, len }.into())
        );
        client
            .sync_raw(iova, Span::new(ByteCount(0), len), to, SyncFor::Device)
            .unwrap();
        assert_eq!(rig.dma.raw_mappings(), 2);
        client.unmap_raw(iova, len, to).unwrap();
        assert_eq!(
            client.unmap_raw(iova, len, to),
            Err(RawDmaError::NotMapped(iova)),
            "twice"
        );
        client.unmap_raw(other, ByteCount(50), given).unwrap();
    }
    assert_eq!(rig.dma.raw_mappings(), 0);
}

#[test]
fn typed_buffers_go_to_the_device_and_come_back() {
    let rig = Rig::new(DmaConfig::default());
    for placement in EVERY {
        let client = rig.client(placement);
        let used = rig.p.frames_in_use();
        let buffer: CpuBuffer<_, BothWays> = client.buffer(ByteCount(9000)).unwrap();
        buffer.write(ByteCount(4090), b"over the edge").unwrap();
        assert!(buffer.write(ByteCount(8999), b"ab").is_err());
        let mut given = client.give(buffer).unwrap();
        let at: Vec<Iova> = given.segments().collect();
        assert_eq!((at.len(), at[0]), (3, given.iova()));
        let mut seen = rig.device_read(Iova(at[0].0 + 4090), 6);
        seen.extend(rig.device_read(at[1], 7));
        assert_eq!(seen, b"over the edge".map(Some), "{placement:?}");
        rig.device_write(given.iova(), b"head");
        let span = Span::new(ByteCount(0), ByteCount(16));
        let head = client.with_cpu(&mut given, span, |view| {
            let mut head = [0; 4];
            view.read(ByteCount(0), &mut head).unwrap();
            view.write(ByteCount(8), b"answer").unwrap();
            assert!(
                view.read(ByteCount(13), &mut head).is_err(),
                "beyond the view"
            );
            head
        });
        assert_eq!(&head.unwrap(), b"head");
        let seen = rig.device_read(Iova(given.iova().0 + 8), 6);
        assert_eq!(seen, b"answer".map(Some), "{placement:?}");
        let buffer = client.take_back(given).unwrap();
        let mut back = [0; 13];
        buffer.read(ByteCount(4090), &mut back).unwrap();
        assert_eq!(&back, b"over the edge");
        drop(buffer.turned::<ToDevice>());
        assert!(client.buffer::<ToDevice>(ByteCount(0)).is_none());
        assert!(client.buffer::<ToDevice>(ByteCount(u64::MAX)).is_none());
        assert!(client.buffer::<ToDevice>(ByteCount(1 << 40)).is_none());
        rig.dma.tick(TimeNs(0));
        rig.dma.tick(TimeNs(u64::MAX / 2));
        rig.dma.tick(TimeNs(u64::MAX));
        assert!(rig.p.frames_in_use() <= used + 12, "tables at most");
    }
}

static NOW: AtomicU64 = AtomicU64::new(0);

fn now() -> TimeNs {
    TimeNs(NOW.load(Relaxed))
}

#[test]
fn the_recorder_tells_what_went_wrong_and_what_went_before() {
    let config = DmaConfig::default().clock(Clock(now));
    let rig = Rig::new(DmaConfig::default());
    let dma = Dma::watched(rig.domain.clone(), config, Recorder::new(2, 10));
    let dma = Arc::new(dma);
    let placement = Placement::Always;
    let client = dma
        .client(ClientConfig::default().placement(placement))
        .unwrap();
    let memory = rig.memory(2);
    let buffer = PhysRange::new(memory, ByteCount(5000));
    let recorder = dma.watch();
    let found = |what| {
        let (all, missed) = recorder.findings();
        assert_eq!(missed, 0);
        all.last().is_some_and(|last| last.what == what)
    };

    NOW.store(1_000_000, Relaxed);
    let mapping = client
        .map_single(lend(buffer), Direction::FromDevice)
        .unwrap();
    let iova = mapping.iova();
    let byte = PhysRange::new(PhysAddr(memory.0 + 4999), ByteCount(1));
    let beside = PhysRange::new(PhysAddr(memory.0 + 5000), ByteCount(1));
    assert!(recorder.check_cpu_access(byte).is_err() && found(Mistake::CpuAccess(byte)));
    assert!(recorder.check_cpu_access(beside).is_ok());
    let span = Span::new(ByteCount(4000), ByteCount(1000));
    client.sync_for_cpu(&mapping, span).unwrap();
    assert!(recorder.check_cpu_access(byte).is_ok());
    assert!(recorder.check_cpu_access(buffer).is_err());
    client.sync_for_device(&mapping, span).unwrap();
    assert!(recorder.check_cpu_access(byte).is_err());
    let outside = Span::new(ByteCount(4000), ByteCount(1001));
    assert!(client.sync_for_cpu(&mapping, outside).is_err() && found(Mistake::Outside(outside)));

    NOW.store(1_500_000, Relaxed);
    let text = recorder.story(iova, now()).to_string();
    assert!(text.starts_with("mapped 0.5 ms ago by client 0"), "{text}");
    client.unmap(mapping).unwrap();
    assert!(recorder.check_cpu_access(byte).is_ok());
    NOW.store(4_700_000, Relaxed);
    let text = recorder.story(iova, now()).to_string();
    assert!(text.contains("unmapped 3.2 ms ago by CPU 0"), "{text}");
    assert!(
        text.contains("flushed 3.2 ms ago") && text.contains("FromDevice"),
        "{text}"
    );
    let text = recorder.story(Iova(1 << 46), now()).to_string();
    assert!(text.contains("never mapped"), "{text}");

    let list: Arc<[PhysRange]> = [buffer].into();
    let mapping = client.map_sg(lend(list), Direction::ToDevice).unwrap();
    let (iova, len) = client.into_raw(mapping).expect("memory");
    assert!(
        client
            .unmap_raw(iova, ByteCount(1), Direction::ToDevice)
            .is_err()
    );
    assert!(found(Mistake::WrongLength { mapped: len }));
    assert!(client.unmap_raw(iova, len, Direction::FromDevice).is_err());
    assert!(found(Mistake::WrongDirection {
        mapped: Direction::ToDevice
    }));
    client.unmap_raw(iova, len, Direction::ToDevice).unwrap();
    assert!(client.unmap_raw(iova, len, Direction::ToDevice).is_err() && found(Mistake::NotMapped));

    let leaked = client
        .map_single(lend(buffer), Direction::ToDevice)
        .unwrap();
    let leaks = recorder.leaks(client.number());
    assert_eq!(leaks.len(), 1);
    assert!(leaks[0].iova == leaked.iova() && found(Mistake::Leak));
    assert!(recorder.leaks(client.number() + 1).is_empty());
    client.unmap(leaked).unwrap();
}

#[test]
fn adaptive_bounces_what_is_cheaper_to_copy_and_keeps_every_byte() {
    static TICKS: AtomicU64 = AtomicU64::new(0);
    // every reading is later by the same: both routes look alike, so either will do
    fn clock() -> TimeNs {
        TimeNs(TICKS.fetch_add(50, Relaxed))
    }
    let config = DmaConfig::default().clock(Clock(clock));
    let rig = Rig::new(config);
    let client = rig.client(Placement::Adaptive);
    let memory = rig.memory(2);
    let buffer = PhysRange::new(PhysAddr(memory.0 + 7), ByteCount(4096));
    let mut bounced = 0;
    for nth in 0..2000u64 {
        let mapping = client
            .map_single(lend(buffer), Direction::FromDevice)
            .unwrap();
        bounced += u64::from(mapping.is_bounced());
        rig.device_write(mapping.iova(), &nth.to_le_bytes());
        client.unmap(mapping).unwrap();
        assert_eq!(rig.peek(buffer.addr, 8), nth.to_le_bytes());
    }
    let learned = rig.dma.learned();
    assert_eq!(learned.len(), 1);
    assert_eq!(
        learned[0].settled,
        Some(Route::Direct),
        "the simpler one where they are alike"
    );
    assert!((256..400).contains(&bounced), "{bounced}");
    let refused = Rig::new(DmaConfig::default());
    let placement = Placement::Adaptive;
    let refused = refused
        .dma
        .client(ClientConfig::default().placement(placement));
    assert!(matches!(refused, Err(PoolError::NoClock)));
}

#[test]
fn adaptive_learns_also_where_there_is_no_buffer_left() {
    static TICKS: AtomicU64 = AtomicU64::new(0);
    fn clock() -> TimeNs {
        TimeNs(TICKS.fetch_add(50, Relaxed))
    }
    let config = DmaConfig::default()
        .pool(
            PoolConfig::default()
                .classes(
                    [ClassConfig {
                        pages_lg2: 0,
                        slots: 2,
                    }]
                    .into(),
                )
                .growth(Growth::OnDemand {
                    chunks_max: 0,
                    single_use: SingleUse::Never,
                })
                .idle_ns(u64::MAX),
        )
        .clock(Clock(clock));
    let rig = Rig::new(config);
    let (client, greedy) = (
        rig.client(Placement::Adaptive),
        rig.client(Placement::Always),
    );
    let buffer = PhysRange::new(rig.memory(1), ByteCount(4096));
    let map = || {
        greedy
            .map_single(lend(buffer), Direction::FromDevice)
            .unwrap()
    };
    let held = [map(), map()];
    for _ in 0..1000 {
        let mapping = client
            .map_single(lend(buffer), Direction::FromDevice)
            .unwrap();
        assert!(!mapping.is_bounced());
        client.unmap(mapping).unwrap();
    }
    assert_eq!(rig.dma.learned()[0].settled, Some(Route::Direct));
    for mapping in held {
        greedy.unmap(mapping).unwrap();
    }
}
