// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What every implementation promises, in small steps.

use ioatlas_dma::units::*;
use ioatlas_vhost::*;
use std::sync::Arc;

const PAGE: u64 = 4096;

fn entry(page: u64, pages: u64, host: u64, perm: Perm) -> Entry {
    Entry {
        iova: Iova(page * PAGE),
        len: ByteCount(pages * PAGE),
        host: HostAddr(host),
        perm,
    }
}

fn piece<B: Guard>(guard: &B, iova: u64, len: u64, need: Perm) -> Result<(u64, u64), LookupError> {
    let piece = guard.lookup(Iova(iova), ByteCount(len), need)?;
    assert_eq!(piece.iova, Iova(iova));
    Ok((piece.host.0, piece.len.0))
}

fn put(cache: &impl DeviceIotlb, entry: Entry) {
    assert_eq!(cache.update(entry), Ok(Updated::Done));
}

fn pieces_end_where_host_addresses_do<C: DeviceIotlb>(cache: Arc<C>) {
    let mut reader = cache.reader().unwrap();
    put(&*cache, entry(1, 1, 0x10_0000, Perm::ReadWrite));
    put(&*cache, entry(2, 1, 0x10_1000, Perm::ReadWrite));
    put(&*cache, entry(3, 1, 0x30_0000, Perm::ReadWrite));
    let guard = reader.pin();
    assert_eq!(
        piece(&guard, PAGE + 5, 9000, Perm::Read),
        Ok((0x10_0005, 2 * PAGE - 5)),
        "(P12)"
    );
    let all: Vec<_> = guard
        .pieces(Iova(PAGE), ByteCount(3 * PAGE), Perm::Read)
        .map(|piece| piece.unwrap().host.0)
        .collect();
    assert_eq!(all, [0x10_0000, 0x30_0000], "(P12)");
    drop(guard);
    assert_eq!(cache.audit().unwrap().runs, 2);
}

fn an_invalidation_splits_and_a_miss_says_where<C: DeviceIotlb>(cache: Arc<C>) {
    let mut reader = cache.reader().unwrap();
    put(&*cache, entry(0, 4, 0x10_0000, Perm::ReadWrite));
    cache.invalidate(Iova(PAGE + 7), ByteCount(1));
    let guard = reader.pin();
    assert_eq!(
        piece(&guard, 0, 4 * PAGE, Perm::Read),
        Ok((0x10_0000, PAGE))
    );
    let mut pieces = guard.pieces(Iova(0), ByteCount(4 * PAGE), Perm::Read);
    assert!(pieces.next().unwrap().is_ok());
    let Some(Err(LookupError::Miss(miss))) = pieces.next() else {
        panic!("it was invalidated (P12)");
    };
    assert_eq!(
        (miss.iova, miss.len),
        (Iova(PAGE), ByteCount(3 * PAGE)),
        "(P12)"
    );
    assert!(pieces.next().is_none());
    assert_eq!(piece(&guard, 2 * PAGE, 9, Perm::Read), Ok((0x10_2000, 9)));
}

fn what_was_not_given_is_missed<C: DeviceIotlb>(cache: Arc<C>) {
    let mut reader = cache.reader().unwrap();
    put(&*cache, entry(8, 1, 0x10_0000, Perm::ReadWrite));
    let guard = reader.pin();
    for page in [0, 7, 9, 8 + 64, 8 + (1 << 18), 8 + (1 << 36)] {
        let found = piece(&guard, page * PAGE, 8, Perm::Read);
        assert!(
            matches!(found, Err(LookupError::Miss(_))),
            "page {page} by what is at page 8: {found:?} (P12)"
        );
    }
}

fn a_later_update_wins<C: DeviceIotlb>(cache: Arc<C>) {
    let mut reader = cache.reader().unwrap();
    put(&*cache, entry(8, 4, 0x10_0000, Perm::Read));
    let forbidden = piece(&reader.pin(), 9 * PAGE, 8, Perm::Write);
    let Err(LookupError::Miss(miss)) = forbidden else {
        panic!("it may only be read (P6)");
    };
    assert_eq!(miss.cause, MissCause::Forbidden);
    put(&*cache, entry(9, 1, 0x10_1000, Perm::ReadWrite));
    assert_eq!(
        piece(&reader.pin(), 9 * PAGE, 8, Perm::Write),
        Ok((0x10_1000, 8))
    );
    assert_eq!(cache.audit().unwrap().runs, 3, "permissions differ");
    put(&*cache, entry(0, 64, 0x80_0000, Perm::ReadWrite));
    let all = piece(&reader.pin(), 0, 64 * PAGE, Perm::Write);
    assert_eq!(all, Ok((0x80_0000, 64 * PAGE)));
    assert_eq!(
        cache.update(entry(5, 2, 0x80_5000, Perm::ReadWrite)),
        Ok(Updated::Unchanged)
    );
}

fn what_is_no_range_is_refused<C: DeviceIotlb>(cache: Arc<C>) {
    let bad = |iova, len, host| {
        let perm = Perm::Read;
        let (iova, len, host) = (Iova(iova), ByteCount(len), HostAddr(host));
        cache
            .update(Entry {
                iova,
                len,
                host,
                perm,
            })
            .expect_err("what is no range was taken (P12)")
    };
    let why = |error| match error {
        UpdateError::Range { why, .. } => why,
        other => panic!("{other}"),
    };
    assert_eq!(why(bad(0, 0, 0)), RangeError::Empty);
    assert_eq!(why(bad(PAGE, PAGE + 1, 0)), RangeError::Unaligned);
    assert_eq!(
        why(bad(2 * PAGE, 0u64.wrapping_sub(PAGE), 0)),
        RangeError::Wraps,
        "(P12)"
    );
    assert_eq!(why(bad(7, PAGE, 0)), RangeError::Unaligned);
    assert!(matches!(
        bad(0, PAGE, u64::MAX),
        UpdateError::HostWraps { .. }
    ));
    let mut reader = cache.reader().unwrap();
    let guard = reader.pin();
    let wraps = guard.lookup(Iova(u64::MAX), ByteCount(2), Perm::Read);
    assert!(
        matches!(
            wraps,
            Err(LookupError::Range {
                why: RangeError::Wraps,
                ..
            })
        ),
        "(P12)"
    );
    let empty = guard.lookup(Iova(0), ByteCount(0), Perm::Read);
    assert!(matches!(
        empty,
        Err(LookupError::Range {
            why: RangeError::Empty,
            ..
        })
    ));
    drop(guard);
    // an invalidation is never refused
    let last = u64::MAX / PAGE;
    put(&*cache, entry(last, 1, 0x1000, Perm::Read));
    put(&*cache, entry(1, 1, 0x1000, Perm::Read));
    cache.invalidate(Iova((last - 3) * PAGE), ByteCount(u64::MAX));
    let mut reader = cache.reader().unwrap();
    assert!(
        piece(&reader.pin(), last * PAGE, 1, Perm::Read).is_err(),
        "(P12)"
    );
    assert!(piece(&reader.pin(), PAGE, 1, Perm::Read).is_ok());
    cache.clear();
    assert_eq!(cache.audit().unwrap().runs, 0);
}

fn an_old_answer_does_not_bring_back_what_was_invalidated<C: DeviceIotlb>(cache: Arc<C>) {
    let asked = cache.now();
    cache.invalidate(Iova(5 * PAGE), ByteCount(PAGE));
    let late = cache.update_since(entry(4, 4, 0x1000, Perm::Read), asked);
    assert_eq!(late, Ok(Updated::Beaten), "(P12)");
    let other = cache.update_since(entry(6, 4, 0x1000, Perm::Read), asked);
    assert_eq!(other, Ok(Updated::Done));
    assert_eq!(
        cache.update(entry(5, 1, 0x1000, Perm::Read)),
        Ok(Updated::Done)
    );
}

macro_rules! suite {
    ($($name:ident: $make:expr;)*) => {$(
        mod $name {
            use super::*;
            #[test]
            fn pieces() {
                pieces_end_where_host_addresses_do($make);
            }
            #[test]
            fn splits() {
                an_invalidation_splits_and_a_miss_says_where($make);
            }
            #[test]
            fn elsewhere() {
                what_was_not_given_is_missed($make);
            }
            #[test]
            fn later_wins() {
                a_later_update_wins($make);
            }
            #[test]
            fn bad_ranges() {
                what_is_no_range_is_refused($make);
            }
            #[test]
            fn old_answers() {
                an_old_answer_does_not_bring_back_what_was_invalidated($make);
            }
        }
    )*};
}

suite! {
    list: ListIotlb::new(Limits::default());
    interval: IntervalIotlb::new(Limits::default());
    vm_memory: VmIotlb::new(Limits::default());
    radix: RadixIotlb::new(Limits::default());
}
