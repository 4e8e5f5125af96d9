// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which invalidations several ranges of one domain call for: a few page-selective ones, or one
//! of the domain. A pure function of the ranges, of what the unit can do, and of what
//! invalidations cost.
//!
//! | ranges | invalidations |
//! |---|---|
//! | all within blocks that the unit can name, few of them | one page-selective a block, and of each device TLB the same blocks |
//! | the same, and more than a submission holds with those of the devices | of each device TLB everything |
//! | more blocks than one domain-selective invalidation costs, or one that the unit cannot name | that of the domain: [`super::plan`] |
//!
//! A block is the smallest aligned power of two around a range, as for a single one. Blocks that
//! others contain are left out.

use super::*;
use crate::queue::BATCH;

/// What invalidations cost a unit and its devices. Only the ratios count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct InvalidationCosts {
    /// To fetch one descriptor.
    pub descriptor: u32,
    /// Of some pages, beyond that.
    pub pages: u32,
    /// Of a domain, beyond that, with what has to be looked up again because of it.
    pub domain: u32,
}

impl InvalidationCosts {
    /// Assumed: a domain-selective invalidation costs as much as eight page-selective ones, since
    /// everything else of the domain is looked up again, too. It was not measured on any unit.
    pub const ASSUMED: InvalidationCosts = InvalidationCosts {
        descriptor: 1,
        pages: 1,
        domain: 15,
    };

    /// Whether `count` page-selective invalidations cost no more than one of the domain. Of device
    /// TLBs each side takes as many more, one for each device, so how many there are changes
    /// nothing as long as the ratio is the same for them.
    pub fn prefer_pages(&self, count: usize) -> bool {
        let [descriptor, pages, domain] =
            [self.descriptor, self.pages, self.domain].map(u128::from);
        count as u128 * (descriptor + pages) <= descriptor + domain
    }
}

impl Default for InvalidationCosts {
    fn default() -> Self {
        Self::ASSUMED
    }
}

/// How many blocks are invalidated one by one at most: with those of as many devices as go into one
/// submission they fit into it.
pub const BLOCKS: usize = BATCH / 2;

/// Pages as aligned powers of two, in ascending order; none contains another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    blocks: [(IovaPage, AddressMask); BLOCKS],
    count: usize,
}

impl Blocks {
    /// The blocks around `ranges`, which are some, ascend and do not overlap; `None` where the
    /// whole domain is to be invalidated instead.
    pub fn around(
        unit: &Capabilities,
        costs: &InvalidationCosts,
        ranges: &[IovaRange],
    ) -> Option<Self> {
        let max = unit.max_address_mask()?;
        let mut all = Blocks {
            blocks: [(IovaPage(0), AddressMask::ONE); BLOCKS],
            count: 0,
        };
        for range in ranges {
            let next = block(*range).filter(|(_, mask)| *mask <= max)?;
            all.add(next)?;
        }
        (all.count > 0 && costs.prefer_pages(all.count)).then_some(all)
    }

    /// Adds a block that does not end before those that are here; `None` where there is no room.
    fn add(&mut self, next: (IovaPage, AddressMask)) -> Option<()> {
        // two of them are apart, or one contains the other
        if let [.., last] = self.as_slice()
            && contains(*last, next)
        {
            return Some(());
        }
        while let [.., last] = self.as_slice()
            && contains(next, *last)
        {
            self.count -= 1;
        }
        *self.blocks.get_mut(self.count)? = next;
        self.count += 1;
        Some(())
    }

    fn as_slice(&self) -> &[(IovaPage, AddressMask)] {
        &self.blocks[..self.count]
    }

    /// The only block, if there is one alone, as a range.
    pub fn only(&self) -> Option<IovaRange> {
        match self.as_slice() {
            [(first, mask)] => Some(IovaRange::new(*first, PageCount(1 << mask.pages_lg2()))),
            _ => None,
        }
    }

    /// The invalidations of these blocks of `domain`, and of the TLBs of its `devices`.
    pub fn plan<'b>(
        &'b self,
        unit: &Capabilities,
        domain: DomainId,
        caches: Caches,
        devices: &'b [AtsDevice],
    ) -> BlocksPlan<'b> {
        let with_devices = self.count * (1 + devices.len());
        BlocksPlan {
            iotlb: self.as_slice(),
            domain,
            hint: hint(caches),
            drain: drain(unit),
            devices,
            of_each: match with_devices <= BATCH {
                true => self.as_slice(),
                false => &[],
            },
        }
    }
}

fn contains(outer: (IovaPage, AddressMask), inner: (IovaPage, AddressMask)) -> bool {
    let lg2 = outer.1.pages_lg2();
    outer.1 >= inner.1 && outer.0.0 >> lg2 == inner.0.0 >> lg2
}

/// What follows a change of translations in several blocks, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlocksPlan<'b> {
    iotlb: &'b [(IovaPage, AddressMask)],
    domain: DomainId,
    hint: LeafHint,
    drain: Drain,
    devices: &'b [AtsDevice],
    /// Of each device's TLB; none of them means all of it.
    of_each: &'b [(IovaPage, AddressMask)],
}

impl<'b> BlocksPlan<'b> {
    /// Device TLBs alone, the rest of a plan for more devices than go into one submission.
    pub fn devices_only(self, devices: &'b [AtsDevice]) -> Self {
        BlocksPlan {
            iotlb: &[],
            devices,
            ..self
        }
    }

    /// Its invalidations, in the order in which the unit must take them.
    pub fn invalidations(self) -> impl Iterator<Item = Invalidation> + Clone {
        let iotlb = self.iotlb.iter().map(move |(first, mask)| {
            Invalidation::Iotlb(IotlbInvalidate {
                target: IotlbTarget::Pages {
                    domain: self.domain,
                    first: *first,
                    mask: *mask,
                    hint: self.hint,
                },
                drain: self.drain,
            })
        });
        let blocks = self.of_each.iter().map(|(first, mask)| DevicePages::Block {
            first: *first,
            mask: *mask,
        });
        let all = self.of_each.is_empty().then_some(DevicePages::All);
        let of_each = blocks.chain(all);
        let devices = self.devices.iter().flat_map(move |of| {
            of_each.clone().map(move |pages| {
                Invalidation::DeviceTlb(DeviceTlbInvalidate {
                    device: of.device,
                    depth: of.depth,
                    pages,
                })
            })
        });
        iotlb.chain(devices)
    }
}
