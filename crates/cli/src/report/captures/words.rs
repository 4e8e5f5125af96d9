// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a capture says, in sentences that terminal and page share.

use super::{Capture, CapturedDevice, Mode, Resolution, Share, Translated, Window};
use crate::report::remedy::LEAST;
use ioatlas_present::{Figure, Part, Sentence, sentence};

/// Below this, in seconds, a burst or a pause is all of a capture.
const LEAST_S: f64 = 1.0;

impl Capture {
    /// How much there was, in how long, or that it was not long enough to tell. All its numbers are
    /// counted.
    #[must_use]
    pub fn heading(&self) -> Sentence {
        let mut says = match (self.time, self.cpus) {
            (Some(time), Some(cpus)) => sentence![time, " on ", cpus, plural(cpus, " CPU")],
            (Some(time), None) => sentence![time],
            (None, _) => sentence!["no times recorded, so there are no rates"],
        };
        if self.seconds.is_some_and(|seconds| seconds < LEAST_S) {
            says.0.push(": too short for rates".into());
        } else if let Some(costs) = &self.costs {
            let rates = sentence![
                ": ",
                costs.maps_per_second,
                " maps and ",
                costs.unmaps_per_second,
                " unmaps a second",
            ];
            says.0.extend(rates.0);
        }
        match self.translated {
            Translated::Yes => {}
            Translated::Partly => says.0.push("; some devices were not translated".into()),
            Translated::No => says.0.push("; no IOMMU translated".into()),
        }
        says
    }
}

/// A noun, with its plural's end where there is not one.
fn plural(count: Figure, noun: &str) -> String {
    match count.value == 1.0 {
        true => noun.into(),
        false => format!("{noun}s"),
    }
}

impl Mode {
    /// How long a device may reach what was unmapped. All its numbers are assumed.
    #[must_use]
    pub fn reach(&self) -> Sentence {
        match self.window {
            Window::None => sentence!["never"],
            Window::Always => sentence!["always, and all other memory"],
            Window::Bounded { unmaps, time } => {
                sentence!["up to ", time, ", or ", unmaps, " unmaps of a CPU"]
            }
        }
    }
}

impl CapturedDevice {
    /// How much the device did. All its numbers are counted.
    #[must_use]
    pub fn workload(&self) -> Sentence {
        let mut says = sentence![self.maps, " maps"];
        if let Some(rate) = self.maps_per_second {
            says.0.extend(sentence![" (", rate, "/s)"].0);
        }
        let size = match self.bytes_recorded {
            true => " in the mean",
            false => " of pages in the mean",
        };
        says.0.extend(sentence![", ", self.mean_bytes, size].0);
        if let Some(peak) = self.peak_live_pages {
            let words = sentence![", ", peak, plural(peak, " page"), " at peak"];
            says.0.extend(words.0);
        }
        if let Some(anomalies) = self.anomalies.filter(|count| count.value > 0.0) {
            says.0.extend(sentence![", ", anomalies, " anomalies"].0);
        }
        says
    }

    /// What lies within reach, and for how long. All its numbers are counted.
    #[must_use]
    pub fn reach(&self) -> Option<Sentence> {
        let mut says = Vec::new();
        if let Some(beside) = self.beside {
            let words = sentence![
                "Other data in reach: in ",
                beside.maps,
                " of maps, ",
                beside.bytes,
                " of the bytes",
            ];
            says.push(words.0);
        }
        if let Some(lifetimes) = self.lifetimes {
            let begin = match lifetimes.resolution {
                Resolution::Exact => "mapped for ",
                Resolution::PowerOfTwo => "mapped for up to ",
            };
            let words = sentence![begin, lifetimes.median, " (99 %: ", lifetimes.p99, ")"];
            says.push(words.0);
        }
        (!says.is_empty()).then(|| Sentence(says.join(&Part::from("; "))))
    }

    /// Which tasks and CPUs mapped most. All its numbers are counted.
    #[must_use]
    pub fn users(&self, most: usize) -> Option<Sentence> {
        let mut says = Sentence::default();
        let mut list = |what: &str, of: &[Share]| {
            let worth = |share: &&Share| share.share.value >= LEAST;
            for (at, share) in of.iter().take(most).filter(worth).enumerate() {
                let begin = match (at, says.0.is_empty()) {
                    (0, true) => what.to_owned(),
                    (0, false) => format!("; {}", what.to_lowercase().replace("cpu", "CPU")),
                    _ => ", ".into(),
                };
                let words = sentence![begin, share.name.clone(), " ", share.share];
                says.0.extend(words.0);
            }
        };
        list("By task: ", &self.tasks);
        list("By CPU: ", &self.cpus);
        (!says.0.is_empty()).then_some(says)
    }

    /// What prefetching would change of the IOTLB's misses, with its error.
    #[must_use]
    pub fn prefetching(&self) -> Option<Sentence> {
        let estimate = self.alh?;
        Some(sentence![
            "Of the IOTLB's misses, which no capture shows, an IOMMU that prefetched neighbours (alh) \
             would change ",
            estimate.change,
            ", give or take ",
            estimate.error,
            " points.",
        ])
    }
}
