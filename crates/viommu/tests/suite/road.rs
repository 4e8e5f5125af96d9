// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The road: map, access, unmap, flush, and what is left.

use crate::rig::*;
use ioatlas_dma::{domain::PolicyConfig, table::Format, units::*};

pub fn map_reaches_the_buffer_and_unmap_ends_it<B: Base, F: Format>() {
    for design in designs() {
        let rig = Rig::<B>::new::<F>(64);
        let before = rig.frames_in_use();
        let domain = rig.domain::<F>(design);
        let deferred = matches!(design.policy, PolicyConfig::DeferredPerCpu(_));

        let mapping = domain.map(buffer(0x99, 1), Direction::ToDevice).unwrap();
        let at = mapping.iova().page();
        assert_eq!(rig.access(at, AccessKind::Read), Some(PhysPage(0x99)));
        assert_eq!(rig.access(at, AccessKind::Write), None, "read only");
        domain.unmap(mapping).unwrap();
        assert_eq!(
            rig.access(at, AccessKind::Read).is_some(),
            deferred,
            "{}: strict: gone; deferred: stale in the IOTLB",
            name(&design)
        );
        domain.domain().flush().unwrap();
        assert_eq!(rig.access(at, AccessKind::Read), None);

        domain.domain().audit().unwrap();
        domain.close(&[NIC]).unwrap();
        rig.assert_clean();
        // the context table stays with the unit
        assert!(rig.frames_in_use() <= before + 1, "{}", name(&design));
    }
}
