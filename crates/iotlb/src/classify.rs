// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Consistent or streaming: from recorded kinds where a device has any, else from
//! behaviour.
//!
//! Recorded: on a device where at least one map carries a kind, `alloc` is
//! consistent and every other map streaming. Behaviour: a mapping is streaming if
//! an unmap takes a page of it, or if it was made after its device's first unmap
//! (drivers allocate rings while they start); all others are consistent.

use crate::event::{Event, Kind};
use crate::live::LiveMappings;
use crate::trace::Trace;
use crate::units::EventTime;
use serde::Serialize;

/// How long a mapping is meant to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Long-lived, shared between CPU and device: rings, control blocks.
    Consistent,
    /// Lives for one transfer.
    Streaming,
}

pub(crate) fn classes(trace: &Trace) -> Vec<Option<Class>> {
    let mut kinds_recorded = vec![false; trace.devices().len()];
    for event in trace.events() {
        if let Event::Map {
            device,
            kind: Some(_),
            ..
        } = event
        {
            kinds_recorded[device.index()] = true;
        }
    }
    let mut seen_unmap = vec![false; trace.devices().len()];
    let mut live = LiveMappings::new(trace);
    let mut classes = vec![None; trace.events().len()];
    for (index, event) in trace.events().iter().enumerate() {
        let device = event.device().index();
        // Shortened mappings are known only once the unmap comes, so the class of
        // an earlier event may change here.
        live.apply_with(EventTime(index), event, |mapping| {
            if !kinds_recorded[device] {
                classes[mapping.0] = Some(Class::Streaming);
            }
        });
        match *event {
            Event::Map { kind, .. } => {
                let consistent = if kinds_recorded[device] {
                    kind == Some(Kind::Alloc)
                } else {
                    !seen_unmap[device]
                };
                let class = if consistent {
                    Class::Consistent
                } else {
                    Class::Streaming
                };
                classes[index] = Some(class);
            }
            Event::Unmap { .. } => seen_unmap[device] = true,
            Event::Access { .. } => {}
        }
    }
    classes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::Limits;

    fn classes_of_maps(lines: &str) -> String {
        let text = format!("# ioatlas-trace 1\n{lines}");
        let trace = Trace::read("test", text.as_bytes(), Limits::default()).unwrap();
        let letter = |class| if class == Class::Consistent { 'c' } else { 's' };
        classes(&trace).into_iter().flatten().map(letter).collect()
    }

    #[test]
    fn recorded_kinds_decide_for_their_device_only() {
        let lines = "M a 1 1 r 1 alloc\nM a 2 1 r\nM a 3 1 r 1 -\nM a 4 1 r - sg\nM b 1 1 r\n";
        assert_eq!(classes_of_maps(lines), "csssc");
        // A kind of `-` records nothing.
        assert_eq!(classes_of_maps("M a 1 1 r 1 -\n"), "c");
        // An unmapped consistent allocation stays consistent.
        assert_eq!(
            classes_of_maps("M a 1 1 r 1 alloc\nU a 1 1\nM a 1 1 r 1 alloc\n"),
            "cc"
        );
    }

    #[test]
    fn behaviour_decides_where_no_kind_is_recorded() {
        assert_eq!(
            classes_of_maps("M a 1 1 r\nM a 2 2 r\nU a 3 1\nM a 9 1 r\n"),
            "css"
        );
        // An unmap of nothing is a first unmap all the same.
        assert_eq!(classes_of_maps("M a 1 1 r\nU a 7 1\nM a 2 1 r\n"), "cs");
        // Replaced pages are no longer the first mapping's.
        assert_eq!(classes_of_maps("M a 1 1 r\nM a 1 1 r\nU a 1 1\n"), "cs");
        assert_eq!(classes_of_maps("M a 1 1 r\nU b 1 1\nM a 2 1 r\n"), "cc");
    }
}
