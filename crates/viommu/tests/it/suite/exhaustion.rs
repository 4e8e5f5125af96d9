// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! No IOVA is left: said with the numbers, after draining what was retired, and over as soon as one
//! comes back.

use crate::suite::{bad_input::*, rig::*};
use ioatlas_dma::{
    domain::*,
    iova::{AllocError, AllocErrorCause},
    table::Format,
    units::*,
};

on_every_machine! {
    exhaustion::an_exhausted_aperture_recovers,
    exhaustion::an_aperture_in_pieces,
    exhaustion::more_than_the_aperture_at_once,
}

/// Eight pages, none of them page 0.
fn narrow(design: DomainConfig) -> DomainConfig {
    design.aperture(IovaRange::new(IovaPage(8), PageCount(8)))
}

pub fn an_exhausted_aperture_recovers<B: Base, F: Format>() {
    for design in designs().into_iter().map(narrow) {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let mut live: Vec<Mapping> = (0..8)
            .map(|i| domain.map(buffer(0x10 + i, 1), Direction::ToDevice))
            .collect::<Result<_, _>>()
            .expect("every page of the aperture can be had");
        for round in 0..20 {
            let numbers = ["1 IOVA pages", "0 pages free", "0 cached", "of 8"];
            let error = refused(&rig, &domain, &numbers, || {
                domain.map(buffer(0x99, 1), Direction::ToDevice)
            });
            let expected = AllocError {
                wanted: PageCount(1),
                free: PageCount(0),
                cached: PageCount(0),
                aperture: PageCount(8),
                cause: AllocErrorCause::Full,
            };
            assert_eq!(error, MapError::NoIova(expected));
            // one goes, and its page is had again at once, under a deferred policy by flushing
            let old = live.remove(round % 8);
            let at = old.range().first;
            rig.access(at, AccessKind::Read);
            domain.unmap(old).unwrap();
            let to = 0x20 + round as u64;
            let new = domain.map(buffer(to, 1), Direction::ToDevice).unwrap();
            assert_eq!(new.range().first, at, "the only page there is");
            assert_eq!(rig.access(at, AccessKind::Read), Some(PhysPage(to)));
            live.push(new);
        }
        live.into_iter().for_each(|m| domain.unmap(m).unwrap());
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn an_aperture_in_pieces<B: Base, F: Format>() {
    for design in designs().into_iter().map(narrow) {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let live: Vec<Mapping> = (0..8)
            .map(|i| domain.map(buffer(0x10 + i, 1), Direction::ToDevice))
            .collect::<Result<_, _>>()
            .unwrap();
        let (odd, even): (Vec<_>, Vec<_>) = live
            .into_iter()
            .partition(|m| m.range().first.0.is_multiple_of(2));
        odd.into_iter().for_each(|m| domain.unmap(m).unwrap());
        let error = refused(&rig, &domain, &["2 IOVA pages", "of 8"], || {
            domain.map(buffer(0x99, 2), Direction::ToDevice)
        });
        let MapError::NoIova(what) = error else {
            panic!("{error}")
        };
        assert_eq!(what.wanted, PageCount(2));
        assert_eq!(
            what.free.0 + what.cached.0,
            4,
            "four pages, no two together"
        );
        even.into_iter().for_each(|m| domain.unmap(m).unwrap());
        let all = domain.map(buffer(0x99, 8), Direction::ToDevice);
        domain.unmap(all.unwrap()).unwrap();
        rig.close(domain, &[NIC]);
        rig.end();
    }
}

pub fn more_than_the_aperture_at_once<B: Base, F: Format>() {
    for design in designs().into_iter().map(narrow) {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let list = [buffer(0x10, 1); 9];
        let error = refused(&rig, &domain, &["16 IOVA pages", "of 8"], || {
            domain.map_list(&list, Direction::ToDevice)
        });
        assert!(matches!(error, MapError::NoIova(_)), "{error}");
        // all of memory at once: 2^40 pages, more than either format has
        let all = bytes(0, END);
        let pages = (1u64 << 40).to_string();
        let error = refused(&rig, &domain, &[&pages], || {
            domain.map(all, Direction::ToDevice)
        });
        assert!(matches!(error, MapError::NoIova(_)), "{error}");
        let error = refused(&rig, &domain, &[&pages], || {
            domain.map_list(&[all], Direction::ToDevice)
        });
        assert!(matches!(error, MapError::NoIova(_)), "{error}");
        rig.close(domain, &[NIC]);
        rig.end();
    }
}
