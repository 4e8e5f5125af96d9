// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a trace says about its own making: `# note <topic> <count>`, a comment that tools keep.
//!
//! A capture rarely holds all that a trace should. What was made up, left out or lost on the way
//! is noted in the trace itself, so that what computes results from it can say so, however often
//! the file was copied.

use serde::{Serialize, Serializer};
use std::fmt;

/// What a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Imported from a log of QEMU; counts events.
    Qemu,
    /// Imported from `ftrace`; counts events.
    Ftrace,
    /// Imported from `perf script`; counts events.
    Perf,
    /// Imported from comma-separated values; counts events.
    Csv,
    /// Accesses placed just before unmaps, or where the CPU got a buffer.
    AccessesAtUnmap,
    /// Accesses placed just after maps.
    AccessesAtMap,
    /// Pages whose access would have made the trace too large.
    AccessesLeftOut,
    /// Mappings that got an IOVA here, as no IOMMU translated.
    IovasAssigned,
    /// Mappings that are taken to begin at their first access.
    MappedAtAccess,
    /// Mappings of devices that the capture cannot tell apart.
    DeviceUnknown,
    /// Mappings without permission and kind.
    KindUnknown,
    /// For how long was recorded, in nanoseconds: longer than from the first event to the last.
    Recorded,
    /// Events that the tracer lost; at least so many.
    Lost,
    /// Entries of the tracer's buffers that newer ones took the place of, before the trace begins.
    Overwritten,
    /// Events before the buffers of all CPUs begin.
    Trimmed,
    /// Lines that mean nothing here.
    UnknownLines,
    /// Unmaps of what was mapped before the capture began.
    MappedBefore,
    /// Events too late to be put in order.
    Late,
    /// Unmaps that were reported after the next map of the range, put in order.
    Overtaken,
    /// Lists whose record was cut.
    ListsCut,
    /// Mappings whose memory is not recorded.
    PhysUnknown,
    /// Mappings that failed, or of no bytes.
    Failed,
    /// Accesses that are interrupts, left out.
    Interrupts,
    /// A last line without end that means nothing, left out.
    CutLine,
    /// Devices, tasks and memory were renumbered.
    Anonymized,
}

impl Topic {
    /// Every topic that a note can have.
    pub const ALL: [Topic; 25] = [
        Topic::Qemu,
        Topic::Ftrace,
        Topic::Perf,
        Topic::Csv,
        Topic::AccessesAtUnmap,
        Topic::AccessesAtMap,
        Topic::AccessesLeftOut,
        Topic::IovasAssigned,
        Topic::MappedAtAccess,
        Topic::DeviceUnknown,
        Topic::KindUnknown,
        Topic::Recorded,
        Topic::Lost,
        Topic::Overwritten,
        Topic::Trimmed,
        Topic::UnknownLines,
        Topic::MappedBefore,
        Topic::Late,
        Topic::Overtaken,
        Topic::ListsCut,
        Topic::PhysUnknown,
        Topic::Failed,
        Topic::Interrupts,
        Topic::CutLine,
        Topic::Anonymized,
    ];

    /// The word for it in a trace.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Topic::Qemu => "from-qemu",
            Topic::Ftrace => "from-ftrace",
            Topic::Perf => "from-perf",
            Topic::Csv => "from-csv",
            Topic::AccessesAtUnmap => "accesses-at-unmap",
            Topic::AccessesAtMap => "accesses-at-map",
            Topic::AccessesLeftOut => "accesses-left-out",
            Topic::IovasAssigned => "iovas-assigned",
            Topic::MappedAtAccess => "mapped-at-access",
            Topic::DeviceUnknown => "device-unknown",
            Topic::KindUnknown => "kind-unknown",
            Topic::Recorded => "recorded-ns",
            Topic::Lost => "lost-events",
            Topic::Overwritten => "overwritten-entries",
            Topic::Trimmed => "trimmed",
            Topic::UnknownLines => "unknown-lines",
            Topic::MappedBefore => "mapped-before",
            Topic::Late => "late-events",
            Topic::Overtaken => "overtaken-unmaps",
            Topic::ListsCut => "lists-cut",
            Topic::PhysUnknown => "memory-unknown",
            Topic::Failed => "failed-maps",
            Topic::Interrupts => "interrupts",
            Topic::CutLine => "cut-line",
            Topic::Anonymized => "anonymized",
        }
    }

    /// Whether results rest on something that was not recorded.
    #[must_use]
    pub const fn is_assumption(self) -> bool {
        matches!(
            self,
            Topic::AccessesAtUnmap
                | Topic::AccessesAtMap
                | Topic::IovasAssigned
                | Topic::MappedAtAccess
                | Topic::DeviceUnknown
        )
    }
}

/// A topic and how often it applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Note {
    /// What the note is about.
    pub topic: Topic,
    /// How often; the unit is the topic's.
    pub count: u64,
}

impl Note {
    /// Reads what follows `# note ` on a line; `None` if it is none of ours.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (word, count) = text.split_once(' ')?;
        let topic = Topic::ALL.into_iter().find(|topic| topic.word() == word)?;
        let digits = !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit());
        let count = digits.then(|| count.parse().ok()).flatten()?;
        Some(Self { topic, count })
    }

    /// For people, in one sentence without its end: what stands before and after the count. Without
    /// the count where the second is `None`.
    #[must_use]
    pub const fn words(self) -> (&'static str, Option<&'static str>) {
        match self.topic {
            Topic::Qemu => ("imported from a QEMU log, ", Some(" events")),
            Topic::Ftrace => ("imported from ftrace, ", Some(" events")),
            Topic::Perf => ("imported from perf script, ", Some(" events")),
            Topic::Csv => ("imported from CSV, ", Some(" events")),
            Topic::AccessesAtUnmap => (
                "assumed: ",
                Some(
                    " accesses, one to each streaming page just before its unmap; none to consistent memory, so misses are a floor",
                ),
            ),
            Topic::AccessesAtMap => (
                "assumed: ",
                Some(
                    " accesses, one to each streaming page just after its map; none to consistent memory, so misses are a floor",
                ),
            ),
            Topic::AccessesLeftOut => ("too many assumed accesses: ", Some(" left out")),
            Topic::IovasAssigned => (
                "assumed: IOVAs of ",
                Some(
                    " maps; no IOMMU translated (off, or passthrough), so this is what translating would ask for",
                ),
            ),
            Topic::MappedAtAccess => (
                "assumed: ",
                Some(" pages mapped at their first access; the log shows no maps"),
            ),
            Topic::DeviceUnknown => (
                "assumed: one device for all ",
                Some(" maps; the events name none"),
            ),
            Topic::KindUnknown => (
                "",
                Some(" maps without kind; consistent and streaming are told apart by lifetime"),
            ),
            Topic::Recorded => ("recorded for ", Some(" nanoseconds")),
            Topic::Lost => ("at least ", Some(" events lost by the tracer")),
            Topic::Overwritten => (
                "",
                Some(" older entries overwritten before the capture begins; what follows is whole"),
            ),
            Topic::Trimmed => (
                "",
                Some(" events before the buffers of all CPUs begin, left out"),
            ),
            Topic::UnknownLines => ("", Some(" lines not understood, left out")),
            Topic::MappedBefore => (
                "",
                Some(" unmaps of what was mapped before the capture began, left out"),
            ),
            Topic::Late => ("", Some(" events too late to be put in order of time")),
            Topic::Overtaken => (
                "",
                Some(" unmaps reported after the next map of their range, put before it"),
            ),
            Topic::ListsCut => ("", Some(" lists recorded in part")),
            Topic::PhysUnknown => ("", Some(" maps of memory that is not recorded")),
            Topic::Failed => ("", Some(" maps that failed, left out")),
            Topic::Interrupts => ("", Some(" interrupt messages, left out")),
            Topic::CutLine => ("the last line was cut, left out", None),
            Topic::Anonymized => ("devices and memory renumbered", None),
        }
    }

    /// [`Self::words`] with the count.
    #[must_use]
    pub fn sentence(self) -> String {
        match self.words() {
            (words, None) => words.into(),
            (before, Some(after)) => format!("{before}{}{after}", self.count),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "# note {} {}", self.topic.word(), self.count)
    }
}

impl Serialize for Note {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.sentence())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_note_is_read_back_and_others_are_not() {
        let mut words = std::collections::HashSet::new();
        for topic in Topic::ALL {
            assert!(words.insert(topic.word()), "{topic:?}");
            let note = Note { topic, count: 7 };
            let text = note.to_string();
            assert_eq!(
                Note::parse(text.strip_prefix("# note ").unwrap()),
                Some(note)
            );
        }
        for text in [
            "lost-events",
            "lost-events x",
            "lost-events -1",
            "lost-events 1 2",
            "x 1",
        ] {
            assert_eq!(Note::parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_note_is_a_sentence_of_its_own_with_its_count() {
        let mut sentences = std::collections::HashSet::new();
        for topic in Topic::ALL {
            let [seven, eight] = [7, 8].map(|count| Note { topic, count }.sentence());
            let counts = !matches!(topic, Topic::CutLine | Topic::Anonymized);
            assert_eq!(seven.contains('7'), counts, "{topic:?}: {seven}");
            assert_eq!(seven.replace('7', "8"), eight);
            assert!(seven.split(' ').count() >= 4, "{topic:?}: {seven}");
            assert!(sentences.insert(seven), "{topic:?}");
        }
        for (topic, sentence) in [
            (Topic::Lost, "at least 7 events lost by the tracer"),
            (Topic::Qemu, "imported from a QEMU log, 7 events"),
            (Topic::CutLine, "the last line was cut, left out"),
        ] {
            assert_eq!(Note { topic, count: 7 }.sentence(), sentence);
        }
    }
}
