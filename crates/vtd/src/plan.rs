// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which invalidation serves a scope: a pure function of the scope and of what the unit can do.
//!
//! | | |
//! |---|---|
//! | the whole domain | domain-selective |
//! | pages, no PSI | domain-selective |
//! | pages | page-selective: the smallest aligned power of two that covers them, if its mask is at most MAMV |
//! | pages, mask above MAMV | domain-selective |
//! | leaves only | IH = 1, where page-selective; a domain-selective one takes the walk caches with it |
//! | always | DR and DW where the unit offers them (P5: done means drained) |

use crate::layout::*;
use ioatlas_dma::{
    grace::{Caches, Scope},
    mutant::{self, Mutant},
    units::{DomainId, IovaPage, IovaRange},
};

/// Page numbers of the ADDR field have this many bits (VT-d 4.1 §6.5.2.3, bits 127..76).
const PAGE_NUMBER_BITS: u32 = 52;

/// The IOTLB invalidation that removes at least `scope` of `domain`. It never fails: the whole domain always serves.
pub fn plan(unit: &Capabilities, domain: DomainId, scope: Scope) -> IotlbInvalidate {
    let hint = match scope.caches {
        Caches::Leaves => LeafHint::LeavesOnly,
        Caches::LeavesAndWalks => LeafHint::Anything,
    };
    let target = scope.pages.and_then(|range| block(unit, range)).map_or(
        IotlbTarget::Domain(domain),
        |(first, mask)| IotlbTarget::Pages {
            domain,
            first,
            mask,
            hint,
        },
    );
    IotlbInvalidate {
        target,
        drain: drain(unit),
    }
}

/// The IOTLB invalidation that removes everything.
pub fn everything(unit: &Capabilities) -> IotlbInvalidate {
    IotlbInvalidate {
        target: IotlbTarget::Global,
        drain: drain(unit),
    }
}

fn drain(unit: &Capabilities) -> Drain {
    if mutant::active(Mutant::ForgetDrain) {
        return Drain::NONE;
    }
    unit.drains()
}

/// The smallest aligned power of two of pages around `range`, if one descriptor of this unit can name it.
fn block(unit: &Capabilities, range: IovaRange) -> Option<(IovaPage, AddressMask)> {
    let max = unit.max_address_mask()?;
    let first = range.first.0;
    let last = first.checked_add(range.pages.0.saturating_sub(1))?;
    if last >> PAGE_NUMBER_BITS != 0 {
        return None;
    }
    // the highest bit in which first and last differ is the highest that the mask must ignore
    let pages_lg2 = u64::BITS - (first ^ last).leading_zeros();
    let mask = AddressMask::new(pages_lg2).filter(|mask| *mask <= max)?;
    Some((IovaPage(first >> pages_lg2 << pages_lg2), mask))
}
