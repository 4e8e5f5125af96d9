// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Ranges that no map gets, and where a device can reach.

use crate::suite::{bad_input::*, rig::*};
use ioatlas_dma::{domain::*, table::Format, units::*};

on_every_machine! {
    reserved::a_reserved_range_that_splits_the_aperture,
    reserved::what_is_mapped_or_reserved_cannot_be_reserved,
    reserved::what_a_device_cannot_reach_is_refused,
}

fn range(first: u64, pages: u64) -> IovaRange {
    IovaRange::new(IovaPage(first), PageCount(pages))
}

/// Eight pages from page 8.
fn domains<B: Base, F: Format>(run: impl Fn(&Rig<B>, &Dom<B, F>)) {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design.aperture(range(8, 8)));
        run(&rig, &domain);
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn a_reserved_range_that_splits_the_aperture<B: Base, F: Format>() {
    domains::<B, F>(|rig, domain| {
        let reserved = range(11, 2);
        domain.domain().reserve(reserved).unwrap();
        for _ in 0..3 {
            let live: Vec<Mapping> = (0..6)
                .map(|i| domain.map(buffer(0x10 + i, 1), Direction::Bidirectional))
                .collect::<Result<_, _>>()
                .expect("every page on either side can be had");
            assert!(live.iter().all(|m| !m.range().overlaps(&reserved)));
            for page in reserved.iter() {
                assert_eq!(rig.access(page, AccessKind::Write), None);
            }
            refused(
                rig,
                domain,
                &["1 IOVA pages", "0 pages free", "of 8"],
                || domain.map(buffer(0x99, 1), Direction::ToDevice),
            );
            live.into_iter().for_each(|m| domain.unmap(m).unwrap());
        }
        // either half of the aperture is split
        refused(rig, domain, &["4 IOVA pages", "of 8"], || {
            domain.map(buffer(0x99, 4), Direction::ToDevice)
        });
        let pairs = [range(8, 2), range(14, 2)];
        for _ in pairs {
            let pair = domain.map(buffer(0x99, 2), Direction::ToDevice).unwrap();
            assert!(pairs.contains(&pair.range()));
            domain.unmap(pair).unwrap();
        }
        let audit = domain.domain().audit().unwrap();
        assert_eq!(audit.stats.reserved, PageCount(2));
    });
}

pub fn what_is_mapped_or_reserved_cannot_be_reserved<B: Base, F: Format>() {
    domains::<B, F>(|rig, domain| {
        let reserved = range(10, 3);
        domain.domain().reserve(reserved).unwrap();
        // memory that firmware uses: mapped where it is
        let at = IovaPage(14);
        let rmrr = domain.map_at(at.addr(), buffer(14, 2), Direction::Bidirectional);
        let rmrr = rmrr.unwrap();
        for (wanted, taken) in [
            (reserved, reserved),
            (range(12, 2), reserved),
            (range(9, 2), reserved),
            (range(15, 1), rmrr.range()),
            (range(13, 2), rmrr.range()),
        ] {
            let numbers = [&*wanted.to_string(), &taken.to_string()];
            let error = refused(rig, domain, &numbers, || domain.domain().reserve(wanted));
            let expected = FixedRangeError::Taken { wanted, taken };
            assert_eq!(error, ReserveError::NoReserve(expected));
        }
        let error = refused(rig, domain, &["0xc+1", "0xa+3"], || {
            domain.map_at(IovaPage(12).addr(), buffer(0x30, 1), Direction::ToDevice)
        });
        let (wanted, taken) = (range(12, 1), reserved);
        let expected = FixedRangeError::Taken { wanted, taken };
        assert_eq!(error, MapError::NoReserve(expected));
        for wanted in [range(7, 1), range(15, 2), range(16, 1), range(9, 0)] {
            let error = refused(rig, domain, &[&wanted.to_string(), "0x8+8"], || {
                domain.domain().reserve(wanted)
            });
            assert!(matches!(
                error,
                ReserveError::NoReserve(FixedRangeError::Outside { .. })
            ));
        }
        assert_eq!(rig.access(at, AccessKind::Write), Some(PhysPage(14)));
        domain.unmap(rmrr).unwrap();
        // retired at most, and out of the way after a flush
        domain.domain().reserve(range(13, 3)).unwrap();
        assert_eq!(rig.access(at, AccessKind::Write), None);
        assert_eq!(domain.domain().stats().reserved, PageCount(6));
    });
}

pub fn what_a_device_cannot_reach_is_refused<B: Base, F: Format>() {
    domains::<B, F>(|rig, domain| {
        let within = |limits, pages| {
            let attrs = MapAttrs::default().limits(limits);
            let buffer = buffer(0x40, pages);
            domain.domain().map_with(buffer, Direction::ToDevice, attrs)
        };
        let end = |page| Limits::NONE.end(IovaPage(page));
        let flushed = domain.domain().stats().invalidations;
        for (limits, pages, words) in [
            (end(8), 1, "below 0x8 only, the aperture is 0x8+8"),
            (end(11), 4, "below 0xb only"),
            (
                Limits::NONE.align_lg2(4),
                1,
                "in 0x8+8 at any multiple of 2^4 pages",
            ),
            (Limits::NONE.boundary_lg2(1), 3, "boundary of 2^1 pages"),
        ] {
            let error = refused(rig, domain, &[words], || within(limits, pages));
            assert!(matches!(error, MapError::NoIova(none) if none.cause.is_final()));
        }
        let now = domain.domain().stats().invalidations;
        assert_eq!(now, flushed, "nothing is drained for what can never be had");
        let low: Vec<_> = (0..3).map(|_| within(end(11), 1).unwrap()).collect();
        assert!(low.iter().all(|m| m.range().end() <= IovaPage(11)));
        refused(rig, domain, &["1 IOVA pages below page 0xb"], || {
            within(end(11), 1)
        });
        // what is retired comes back for callers that need it there
        for mapping in low {
            let at = mapping.range();
            domain.domain().unmap(mapping).unwrap();
            let again = within(end(11), 1).unwrap();
            assert_eq!(again.range(), at, "the only page below");
            domain.domain().unmap(again).unwrap();
            domain.domain().reserve(at).unwrap();
        }
    });
}
