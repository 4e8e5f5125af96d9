// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The maps and unmaps of a trace alone, ready to be done many times over.
//!
//! The rules are those of the replay, without its limits: lists are one map and one unmap, and what
//! does not fit is left out. All devices of the trace share one domain. What is still mapped at the
//! end is unmapped there, as a driver that stops does.

use crate::replay::{direction, request};
use ioatlas_dma::units::{Direction, PhysRange};
use ioatlas_iotlb::{Event, Trace, lists};
use std::collections::BTreeMap;

/// One call of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Map these buffers, as one list if there are several.
    Map {
        /// Names the mapping in the script.
        id: usize,
        buffers: Vec<PhysRange>,
        direction: Direction,
    },
    /// Unmap what the script maps under this name.
    Unmap { id: usize },
}

/// What devices have mapped: device and first page to pages and name.
type Live = BTreeMap<(u32, u64), (u64, usize)>;

/// The calls of `trace`.
pub(crate) fn script(trace: &Trace) -> Vec<Step> {
    let lists = lists(trace);
    let (mut live, mut steps, mut next) = (Live::new(), Vec::new(), 0);
    for (time, event) in trace.events().iter().enumerate() {
        let alone = [time];
        let lines = match lists.heads.get(&time) {
            Some(list) => list.as_slice(),
            None if lists.members.contains(&time) => continue,
            None => &alone,
        };
        match *event {
            Event::Map { .. } => {
                let Some(request) = request(lines, trace) else {
                    continue;
                };
                let at = (request.device, request.first);
                let fits = request.buffers.iter().all(|buffer| buffer.end().is_some());
                if !fits || overlaps(&live, at, request.pages) {
                    continue;
                }
                live.insert(at, (request.pages, next));
                steps.push(Step::Map {
                    id: next,
                    buffers: request.buffers,
                    direction: direction(request.permission),
                });
                next += 1;
            }
            Event::Unmap { device, range } => {
                let first = range.first().number();
                let end = first.saturating_add(range.pages().0);
                let inside = live.range((device.0, first)..(device.0, end));
                let whole: Vec<_> = inside
                    .filter(|((_, at), (pages, _))| at + pages <= end)
                    .map(|(at, (_, id))| (*at, *id))
                    .collect();
                for (at, id) in whole {
                    live.remove(&at);
                    steps.push(Step::Unmap { id });
                }
            }
            Event::Access { .. } => {}
        }
    }
    steps.extend(live.into_values().map(|(_, id)| Step::Unmap { id }));
    steps
}

fn overlaps(live: &Live, (device, first): (u32, u64), pages: u64) -> bool {
    let mut before = live.range((device, 0)..(device, first.saturating_add(pages)));
    before
        .next_back()
        .is_some_and(|((_, at), (pages, _))| at + pages > first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_iotlb::Limits;

    #[test]
    fn every_map_is_unmapped_once_and_misfits_are_left_out() {
        let text = "# ioatlas-trace 1\nM a 100 2 r 5\nM a 101 1 r\nM b 100 1 w\nA a 100 r\nU a 100 1\nU a 100 2\n\
                    U c 1 1\nM a 101 1 rw 7\n";
        let trace = Trace::read("t", text.as_bytes(), Limits::default()).unwrap();
        let steps = script(&trace);
        let unmaps = |steps: &[Step]| -> Vec<usize> {
            let id = |step: &Step| match step {
                Step::Unmap { id } => Some(*id),
                Step::Map { .. } => None,
            };
            steps.iter().filter_map(id).collect()
        };
        assert_eq!(unmaps(&steps), [0, 2, 1]);
        assert_eq!(steps.len(), 6);
        assert!(matches!(
            &steps[1],
            Step::Map {
                direction: Direction::FromDevice,
                ..
            }
        ));
    }

    #[test]
    fn lists_are_one_call() {
        let loaded = crate::bundled::BASE[1].load().unwrap();
        let steps = script(&loaded.trace);
        let lists = steps
            .iter()
            .filter(|step| matches!(step, Step::Map { buffers, .. } if buffers.len() > 1));
        assert!(lists.count() > 50);
    }
}
