// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Devices and domains: which device reaches what (P8).

use crate::suite::rig::*;
use ioatlas_dma::{table::Format, translator::AttachError, units::*};
use std::collections::BTreeMap;

on_every_machine! {
    attach::a_detached_device_is_blocked_at_once,
    attach::an_attached_device_reaches_what_is_mapped_already,
    attach::two_domains_never_serve_each_other,
    attach::a_device_moves_from_domain_to_domain,
    attach::a_domain_id_is_reused_without_its_past,
    attach::closing_ends_live_mappings,
}

pub fn a_detached_device_is_blocked_at_once<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        domain.attach(DISK).unwrap();
        let mapping = domain.map(buffer(0x10, 1), Direction::ToDevice).unwrap();
        let at = mapping.iova().page();
        for _ in 0..3 {
            for source in [NIC, DISK] {
                let to = rig.access_by(source, at, AccessKind::Read);
                assert_eq!(to, Some(PhysPage(0x10)), "{source}");
            }
            domain.detach(DISK).unwrap();
            // its context entry was cached, and so is the translation
            assert_eq!(rig.access_by(DISK, at, AccessKind::Read), None);
            assert_eq!(rig.access(at, AccessKind::Read), Some(PhysPage(0x10)));
            domain.attach(DISK).unwrap();
        }
        domain.unmap(mapping).unwrap();
        rig.close(domain, &[NIC, DISK]);
        rig.end();
    }
}

pub fn an_attached_device_reaches_what_is_mapped_already<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.machine.domain::<F>(design).unwrap();
        let mapping = domain.map(buffer(0x10, 1), Direction::ToDevice).unwrap();
        let at = mapping.iova().page();
        for source in [NIC, DISK] {
            assert_eq!(rig.access_by(source, at, AccessKind::Read), None);
            domain.attach(source).unwrap();
            let to = rig.access_by(source, at, AccessKind::Read);
            assert_eq!(to, Some(PhysPage(0x10)), "{source}");
        }
        domain.unmap(mapping).unwrap();
        rig.close(domain, &[NIC, DISK]);
        rig.end();
    }
}

pub fn two_domains_never_serve_each_other<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let ours = rig.domain::<F>(design);
        let theirs = rig.machine.domain::<F>(design).unwrap();
        theirs.attach(DISK).unwrap();
        // one address in both, one each that the other has not
        let map = |domain: &Dom<B, F>, first, page| {
            let at = IovaPage(first).addr();
            domain.map_at(at, buffer(page, 1), Direction::ToDevice)
        };
        let a = [map(&ours, 5, 0x10), map(&ours, 6, 0x11)];
        let b = [map(&theirs, 5, 0x20), map(&theirs, 7, 0x21)];
        let reach = |source, first| rig.access_by(source, IovaPage(first), AccessKind::Read);
        for _ in 0..2 {
            assert_eq!(reach(NIC, 5), Some(PhysPage(0x10)));
            assert_eq!(reach(DISK, 5), Some(PhysPage(0x20)));
            assert_eq!(reach(NIC, 6), Some(PhysPage(0x11)));
            assert_eq!(reach(DISK, 6), None);
            assert_eq!(reach(NIC, 7), None);
            assert_eq!(reach(DISK, 7), Some(PhysPage(0x21)));
        }
        // what one unmaps and flushes, the other keeps
        for mapping in a {
            ours.unmap(mapping.unwrap()).unwrap();
        }
        ours.domain().flush().unwrap();
        assert_eq!(reach(NIC, 5), None);
        assert_eq!(reach(DISK, 5), Some(PhysPage(0x20)));
        for mapping in b {
            theirs.unmap(mapping.unwrap()).unwrap();
        }
        rig.close(ours, &[NIC]);
        rig.close(theirs, &[DISK]);
        rig.end();
    }
}

pub fn a_device_moves_from_domain_to_domain<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domains = [0x10u64, 0x20].map(|page| {
            let domain = rig.machine.domain::<F>(design).unwrap();
            let at = Iova(0x3000);
            let mapping = domain.map_at(at, buffer(page, 1), Direction::Bidirectional);
            (domain, mapping.unwrap(), PhysPage(page))
        });
        for _ in 0..4 {
            for (domain, mapping, page) in &domains {
                domain.attach(NIC).unwrap();
                for kind in [AccessKind::Read, AccessKind::Write] {
                    let to = rig.access(mapping.iova().page(), kind);
                    assert_eq!(to, Some(*page));
                }
                domain.detach(NIC).unwrap();
            }
        }
        for (domain, mapping, _) in domains {
            domain.unmap(mapping).unwrap();
            rig.close(domain, &[]);
        }
        rig.end();
    }
}

pub fn a_domain_id_is_reused_without_its_past<B: Base, F: Format>() {
    for design in designs() {
        // 15 ids, so that they come round; large caches, so that the past would be there
        let rig = Rig::<B>::with::<F>(64, |config| {
            config.features.nd = 0;
            config.caches.iotlb.entries = 256;
        });
        let mut uses: BTreeMap<u16, u32> = BTreeMap::new();
        for round in 0..40 {
            let domain = rig.domain::<F>(design);
            *uses.entry(domain.domain().id().0).or_default() += 1;
            let at = Iova(0x3000);
            let page = 0x100 + round;
            assert_eq!(rig.access(at.page(), AccessKind::Read), None);
            let mapping = domain.map_at(at, buffer(page, 1), Direction::ToDevice);
            let to = rig.access(at.page(), AccessKind::Read);
            assert_eq!(to, Some(PhysPage(page)));
            let mapping = mapping.unwrap();
            if round % 2 == 0 {
                domain.unmap(mapping).unwrap();
            } // else it ends with its domain
            rig.close(domain, &[NIC]);
        }
        assert!(
            uses.values().any(|n| *n > 1),
            "no id came again: {:?}",
            uses
        );
        rig.end();
    }
}

pub fn closing_ends_live_mappings<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let domain = rig.domain::<F>(design);
        let mut kept = Vec::new();
        for round in 0..4 {
            let mapping = domain
                .map(buffer(0x800 + round, 2), Direction::ToDevice)
                .unwrap();
            let to = rig.access(mapping.iova().page(), AccessKind::Read);
            assert_eq!(to, Some(PhysPage(0x800 + round)));
            kept.push(mapping);
        }
        rig.close(domain, &[NIC]);
        for mapping in kept {
            let at = mapping.iova().page();
            assert_eq!(rig.access(at, AccessKind::Read), None, "{}", name(&design));
        }
        // the device is free for another domain
        let other = rig.machine.domain::<F>(design).unwrap();
        assert!(matches!(
            other.detach(NIC),
            Err(AttachError::NotAttached { device: NIC, .. })
        ));
        other.attach(NIC).unwrap();
        rig.close(other, &[NIC]);
        rig.end();
    }
}
