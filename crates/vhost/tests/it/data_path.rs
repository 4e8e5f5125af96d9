// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Misses asked for once; rings remembered.

use ioatlas_dma::units::*;
use ioatlas_vhost::*;

const PAGE: u64 = 4096;
const NOW: TimeNs = TimeNs(5);

fn entry(page: u64, pages: u64, host: u64) -> Entry {
    Entry {
        iova: Iova(page * PAGE),
        len: ByteCount(pages * PAGE),
        host: HostAddr(host * PAGE),
        perm: Perm::ReadWrite,
    }
}
fn miss(page: u64, pages: u64, need: Perm) -> Miss {
    Miss {
        iova: Iova(page * PAGE),
        len: ByteCount(pages * PAGE),
        need,
        cause: MissCause::Absent,
    }
}

#[test]
fn what_includes_a_miss_answers_for_it() {
    let pending = PendingMisses::new(8);
    let asked = [
        (miss(2, 2, Perm::Read), Asked::New),
        (miss(2, 1, Perm::Read), Asked::Already),
        (miss(2, 1, Perm::Write), Asked::New),
        (miss(9, 1, Perm::ReadWrite), Asked::New),
        (miss(9, 1, Perm::Read), Asked::Already),
        (miss(3, 2, Perm::Read), Asked::New), // a part alone does not answer for it
    ];
    for (miss, expected) in asked {
        assert_eq!(pending.ask(&miss, NOW), expected, "{miss:?}");
    }
    assert_eq!((pending.len(), pending.oldest()), (4, Some(NOW)));
    for answer in [entry(2, 3, 300), entry(9, 1, 400)] {
        pending.answered(answer.iova, answer.len, answer.perm);
    }
    assert!(pending.is_empty());
}

#[test]
fn questions_are_bounded_and_expire() {
    let pending = PendingMisses::new(2);
    let miss = |page: u64| Miss {
        iova: Iova(page * PAGE + 17),
        len: ByteCount(64),
        need: Perm::Read,
        cause: MissCause::Absent,
    };
    assert_eq!(pending.ask(&miss(1), TimeNs(1)), Asked::New);
    assert_eq!(pending.ask(&miss(1), TimeNs(2)), Asked::Already);
    assert_eq!(pending.ask(&miss(2), TimeNs(3)), Asked::New);
    assert_eq!(pending.ask(&miss(3), TimeNs(4)), Asked::Full);
    assert_eq!(pending.expire(TimeNs(3)), 1);
    assert_eq!(pending.ask(&miss(3), TimeNs(5)), Asked::New);
    // the answer permits less than was asked: not one
    pending.answered(Iova(2 * PAGE), ByteCount(PAGE), Perm::Write);
    assert_eq!(pending.len(), 2);
    pending.clear();
    assert!(pending.is_empty());
}

fn rings<C: DeviceIotlb>(cache: std::sync::Arc<C>) {
    let mut reader = cache.reader().unwrap();
    let mut ring = MetaTranslation::new(Iova(3 * PAGE + 256), ByteCount(2 * PAGE), Perm::ReadWrite);
    assert!(matches!(
        ring.get(&reader.pin()),
        Err(MetaError::Lookup(LookupError::Miss(_)))
    ));
    assert_eq!(cache.update(entry(3, 3, 50)), Ok(Updated::Done));
    assert_eq!(ring.get(&reader.pin()), Ok(HostAddr(50 * PAGE + 256)));
    assert_eq!(ring.get(&reader.pin()), Ok(HostAddr(50 * PAGE + 256)));
    cache.invalidate(Iova(4 * PAGE), ByteCount(PAGE));
    let Err(MetaError::Lookup(LookupError::Miss(miss))) = ring.get(&reader.pin()) else {
        panic!("{}: a ring outlives its invalidation (P12)", C::NAME);
    };
    assert_eq!(miss.iova, Iova(4 * PAGE));
    assert_eq!(cache.update(entry(4, 1, 90)), Ok(Updated::Done));
    assert!(
        matches!(ring.get(&reader.pin()), Err(MetaError::Scattered { .. })),
        "(P12)"
    );
    // moved by an update alone
    assert_eq!(cache.update(entry(0, 16, 200)), Ok(Updated::Done));
    assert_eq!(ring.get(&reader.pin()), Ok(HostAddr(203 * PAGE + 256)));
    assert_eq!(cache.update(entry(0, 16, 300)), Ok(Updated::Done));
    assert_eq!(
        ring.get(&reader.pin()),
        Ok(HostAddr(303 * PAGE + 256)),
        "{} (P12)",
        C::NAME
    );
}

/// Evicted, then brought back elsewhere, or for less: no update replaced anything, and still it is
/// not what is remembered.
fn evicted<C: DeviceIotlb>(cache: std::sync::Arc<C>) {
    let mut reader = cache.reader().unwrap();
    for perm in [Perm::ReadWrite, Perm::Read] {
        cache.clear();
        let mut ring = MetaTranslation::new(Iova(3 * PAGE), ByteCount(PAGE), Perm::ReadWrite);
        assert_eq!(cache.update(entry(3, 1, 50)), Ok(Updated::Done));
        assert_eq!(ring.get(&reader.pin()), Ok(HostAddr(50 * PAGE)));
        let page = Iova(3 * PAGE);
        let there = |reader: &mut C::Reader| {
            let found = reader.pin().lookup(page, ByteCount(PAGE), Perm::Read);
            found.is_ok()
        };
        let mut other = 100;
        while there(&mut reader) {
            assert_eq!(
                cache.update(entry(other, 1, 1000 + 3 * other)),
                Ok(Updated::Done)
            );
            other += 2;
            assert!(other < 10_000, "{}: nothing is evicted", C::NAME);
        }
        let moved = Entry {
            perm,
            ..entry(3, 1, 70)
        };
        assert_eq!(cache.update(moved), Ok(Updated::Done));
        let got = ring.get(&reader.pin());
        match perm {
            Perm::ReadWrite => assert_eq!(got, Ok(HostAddr(70 * PAGE)), "{} (P12)", C::NAME),
            _ => assert!(got.is_err(), "{} (P6)", C::NAME),
        }
    }
}

#[test]
fn rings_are_looked_up_again_after_evictions() {
    let limits = Limits::default().runs(3);
    evicted(RadixIotlb::new(limits));
    evicted(ListIotlb::new(limits));
    evicted(IntervalIotlb::new(limits));
    evicted(VmIotlb::new(limits));
}

#[test]
fn rings_are_looked_up_again_after_invalidations_and_replacements() {
    rings(RadixIotlb::new(Limits::default()));
    rings(ListIotlb::new(Limits::default()));
    rings(IntervalIotlb::new(Limits::default()));
    rings(VmIotlb::new(Limits::default()));
}
