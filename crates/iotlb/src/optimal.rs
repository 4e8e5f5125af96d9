// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The optimal eviction of WIOSCA'10, section 4.8: it knows the future.
//!
//! *Next use* of a page at some step: the next access to it before it is unmapped or
//! mapped over, else never. An entry's next use changes when it is accessed and when its
//! page is mapped over (the entry stays cached), and at no other time.

use crate::runs::Runs;
use crate::step::{Operation, Step, flag};
use crate::strategy::{Ranked, Strategy};
use std::collections::HashMap;

/// No next use. Also the bound on the number of steps.
const NEVER: u32 = u32::MAX;

/// The trace has more steps than the optimal eviction can look ahead in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManySteps;

/// A first access after a map over the page: the last such map before it, and the access.
type Return = (u32, u32);

/// All next uses of a plan.
#[derive(Debug, Default)]
pub(crate) struct NextUses {
    /// By step; of accesses.
    next: Vec<u32>,
    /// By device and page, in order of time.
    returns: HashMap<(u32, u64), Vec<Return>>,
}

impl NextUses {
    /// Finds them, from the end to the beginning: so only the table by slot is hit at
    /// random, which is small.
    pub fn of(steps: &[Step], devices: usize) -> Result<Self, TooManySteps> {
        if steps.len() >= NEVER as usize {
            return Err(TooManySteps);
        }
        let mut next = vec![NEVER; steps.len()];
        // By slot: the access that comes next in the same life of the page.
        let mut latest: Vec<u32> = Vec::new();
        let mut any_over = false;
        for (index, step) in steps.iter().enumerate().rev() {
            match step.operation() {
                Operation::Access => {
                    let slot = step.slot();
                    if slot >= latest.len() {
                        latest.resize((slot + 1).next_power_of_two(), NEVER);
                    }
                    next[index] = latest[slot];
                    latest[slot] = if step.has(flag::FIRST) {
                        NEVER
                    } else {
                        index as u32
                    };
                }
                Operation::Map => any_over |= step.has(flag::REPLACES),
                Operation::Fault | Operation::Unmap => {}
            }
        }
        let returns = if any_over {
            returns(steps, devices)
        } else {
            HashMap::new()
        };
        Ok(Self { next, returns })
    }

    fn after(&self, entry: &Ranked) -> u32 {
        if !entry.mapped_over {
            return self.next[entry.step];
        }
        let now = entry.step as u32;
        let page = (entry.device.0, entry.page.number());
        let returns = self.returns.get(&page).map_or(&[][..], Vec::as_slice);
        let at = returns.partition_point(|&(_, access)| access < now);
        match returns.get(at) {
            Some(&(map, access)) if map == now => access,
            _ => NEVER,
        }
    }
}

/// The first accesses after maps over their pages.
fn returns(steps: &[Step], devices: usize) -> HashMap<(u32, u64), Vec<Return>> {
    let mut returns: HashMap<_, Vec<Return>> = HashMap::new();
    // By device: pages mapped over and not unmapped since, with the latest such map.
    let mut over: Vec<Runs<u32>> = vec![Runs::default(); devices];
    for (index, step) in steps.iter().enumerate() {
        let now = index as u32;
        match step.operation() {
            Operation::Access if step.has(flag::FIRST) => {
                let tag = step.tag();
                if let Some(map) = over[tag.device as usize].get(tag.page) {
                    let page = returns.entry((tag.device, tag.page));
                    page.or_default().push((map, now));
                }
            }
            Operation::Map if step.has(flag::REPLACES) => {
                let span = step.span();
                over[span.device as usize].insert(span.first, span.last, now);
            }
            Operation::Unmap => {
                let span = step.span();
                over[span.device as usize].take(span.first, span.last, |_, _, _| {});
            }
            _ => {}
        }
    }
    returns
}

/// Evicts the entry that is used again last.
#[derive(Debug)]
pub(crate) struct Optimal<'a>(pub &'a NextUses);

impl Strategy for Optimal<'_> {
    const PREFETCHES: bool = false;
    const RANKS: bool = true;
    const ASKS_ANY_PAGE: bool = false;

    #[inline]
    fn rank(&mut self, entry: &Ranked) -> u32 {
        NEVER - self.0.after(entry)
    }
}
