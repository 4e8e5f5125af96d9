// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas trace info`: what is in traces; and what commands over several traces share.

use crate::args::InfoArguments;
use crate::capture::{CaptureArguments, sentences};
use crate::error::Error;
use crate::input;
use crate::progress::{Bar, Part, Progress};
use crate::{Answer, Screen};
use ioatlas_iotlb::{Trace, TraceInfo};
use ioatlas_present::{Table, grouped, printable};
use serde::{Serialize, Serializer};
use std::path::PathBuf;

/// Results by file name as the user gave it, in the order given, and the errors of the files that
/// have none. To read a trace and to get its result take about as long as `weights` say.
pub(crate) fn per_trace<T>(
    paths: &[PathBuf],
    capture: &CaptureArguments,
    weights: [usize; 2],
    mut result: impl FnMut(&Trace, &dyn Progress) -> T,
) -> (Vec<(String, T)>, Vec<Error>) {
    let (mut results, mut errors) = (Vec::new(), Vec::new());
    if let Err(error) = Error::if_twice(paths) {
        return (results, vec![error]);
    }
    let bar = Bar::default();
    for (n, path) in paths.iter().enumerate() {
        let part = Part::of(&bar, n, paths.len());
        let [reading, working] = Part::divide(&part, weights);
        match capture.load(path, &reading) {
            Ok(trace) => results.push((input::name(path), result(&trace, &working))),
            Err(error) => errors.push(error),
        }
    }
    (results, errors)
}

/// Results as JSON: bare where one file was asked for, else by file name.
pub(crate) struct ByName<'a, T> {
    results: &'a [(String, T)],
    asked: usize,
}

impl<'a, T: Serialize> ByName<'a, T> {
    pub fn new(results: &'a [(String, T)], asked: usize) -> Self {
        Self { results, asked }
    }

    /// The text to print; what cannot be written as JSON joins `errors`.
    pub fn json(&self, errors: &mut Vec<Error>) -> String {
        if self.results.is_empty() {
            return String::new();
        }
        let text = ioatlas_present::json(self).map_err(|error| errors.push(error.into()));
        text.unwrap_or_default()
    }
}

impl<T: Serialize> Serialize for ByName<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.asked, self.results) {
            (1, [(_, result)]) => result.serialize(serializer),
            _ => serializer.collect_map(self.results.iter().map(|(name, result)| (name, result))),
        }
    }
}

pub(crate) fn run(arguments: &InfoArguments, screen: &Screen) -> Answer {
    if arguments.assumption_error {
        return crate::assumption::run(arguments);
    }
    let (results, mut errors) =
        per_trace(&arguments.traces, &arguments.capture, [9, 1], |trace, _| {
            trace.info()
        });
    let text = if arguments.json {
        ByName::new(&results, arguments.traces.len()).json(&mut errors)
    } else {
        results
            .iter()
            .map(|(_, info)| plain(info, screen))
            .collect::<Vec<_>>()
            .join("\n")
    };
    Answer { text, errors }
}

fn plain(info: &TraceInfo, screen: &Screen) -> String {
    let mut text = format!(
        "{}: {} events, {} devices, {} marks, {} pages live at peak\n",
        printable(&info.name, 200),
        grouped(info.events as u64),
        info.devices.len(),
        info.marks,
        grouped(info.peak_live_pages.0)
    );
    let mut table = Table::new([
        "device",
        "maps",
        "unmaps",
        "accesses",
        "alloc",
        "page",
        "sg",
        "no kind",
        "consistent",
        "streaming",
        "peak pages",
        "mapped over",
        "unmapped twice",
        "faults",
    ])
    .aligned("lr");
    for device in &info.devices {
        let mut row = vec![printable(&device.device, 40)];
        row.extend(
            [
                device.maps,
                device.unmaps,
                device.accesses,
                device.kinds.alloc,
                device.kinds.page,
                device.kinds.sg,
                device.kinds.not_recorded,
                device.consistent_maps,
                device.streaming_maps,
                device.peak_live_pages.0,
                device.anomalies.map_over_mapped_pages.0,
                device.anomalies.unmap_not_mapped_pages.0,
                device.anomalies.faults,
            ]
            .map(grouped),
        );
        table.row(row);
    }
    text += &table.fitted("  ", screen.columns(), |text| screen.heading(text));
    if let Some(clock) = &info.clock {
        let cpus = clock.cpus.map(|cpus| format!(", {cpus} CPUs"));
        text += &format!(
            "  {:.3} s{}; {:.0} maps and {:.0} unmaps a second\n",
            clock.seconds,
            cpus.unwrap_or_default(),
            clock.maps_per_second,
            clock.unmaps_per_second
        );
    }
    text += &sentences(&info.notes, "  ");
    if let Some(events) = &info.not_understood {
        text += &format!("  not understood: {}\n", printable(events, 200));
    }
    text
}
