// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The report as data. Terminal, page and JSON are made from it and from nothing else.

use super::atlas::Atlas;
use super::bouncing::Bouncing;
use super::captures::Capture;
use super::compare::Comparison;
use super::systems::SystemRow;
use super::timings;
use super::verdict::DeviceVerdict;
use ioatlas_iotlb::{Note, Topic};
use ioatlas_present::printable;
use ioatlas_present::{Figure, Sentence, Unit, sentence};
use serde::Serialize;

/// Everything a report says.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was looked at.
    pub source: Source,
    /// Entries of the reference IOTLB.
    pub iotlb_entries: usize,
    /// Ways of the reference IOTLB.
    pub iotlb_ways: usize,
    /// Whether no trace has lost events. The rates, lifetimes and misses of one that has are not
    /// those of its machine.
    pub usable: bool,
    /// Traces of which the tracer lost events.
    pub losses: Vec<Loss>,
    /// What traces say about their making, of those that do: what results rest on.
    pub made: Vec<Making>,
    /// One a device of traces with accesses, in the order of traces.
    pub verdicts: Vec<DeviceVerdict>,
    /// Traces without accesses of their own, in the order of traces. They have no verdicts.
    pub captures: Vec<Capture>,
    /// What changed from the first trace to the second, where a user gave exactly two.
    pub comparison: Option<Comparison>,
    /// The same as `verdicts` for the bundled variants.
    pub variants: Vec<DeviceVerdict>,
    /// One a system; empty where none was run.
    pub systems: Vec<SystemRow>,
    /// What the oracle found over all systems; `None` where none was run.
    pub oracle: Option<OracleTotals>,
    /// What one invalidation makes a CPU wait for.
    pub wait: Wait,
    /// Where bounce buffers would pay; `None` where nothing is mapped for streaming.
    pub bouncing: Option<Bouncing>,
    /// Where the numbers come from.
    pub provenance: Provenance,
    /// Pictures of the traces; on the page only.
    #[serde(skip)]
    pub atlases: Vec<Atlas>,
}

/// What the tracer lost of a trace.
#[derive(Clone, Debug, Serialize)]
pub struct Loss {
    /// The trace, by its [`crate::LoadedTrace::label`].
    pub trace: String,
    /// Events lost, at least; counted.
    pub events: Figure,
    /// These, of all that there were, at least; counted.
    pub share: Figure,
}

impl Loss {
    /// `None` if the trace says of no loss.
    #[must_use]
    pub fn of(loaded: &crate::LoadedTrace) -> Option<Self> {
        let lost = loaded.trace.lost_events();
        // of an import its own count: the trace has events besides that were made up
        let imported = |note: &&Note| matches!(note.topic, Topic::Ftrace | Topic::Perf);
        let imported = loaded.trace.notes().iter().find(imported);
        let kept = imported.map_or(loaded.trace.events().len() as u64, |note| note.count);
        (lost > 0).then(|| Self {
            trace: loaded.label.clone(),
            events: Figure::count(lost),
            share: Figure::counted(
                100.0 * lost as f64 / (lost as f64 + kept as f64),
                Unit::Percent,
            ),
        })
    }
}

/// How a trace was made.
#[derive(Clone, Debug, Serialize)]
pub struct Making {
    /// The trace, by its [`crate::LoadedTrace::label`].
    pub trace: String,
    /// A sentence a note; assumptions first.
    #[serde(serialize_with = "plain")]
    pub notes: Vec<Sentence>,
    /// How many of them are assumptions.
    pub assumptions: usize,
    /// Whether its last line was cut, which is one of the notes.
    #[serde(skip)]
    pub is_cut: bool,
}

fn plain<S: serde::Serializer>(notes: &[Sentence], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(notes.iter().map(Sentence::plain))
}

impl Making {
    /// From the notes of a trace; `None` if there are none.
    #[must_use]
    pub fn of(loaded: &crate::LoadedTrace) -> Option<Self> {
        let mut notes = loaded.trace.notes().to_vec();
        if !loaded.has_accesses() {
            // what rests on accesses that were assumed says so itself
            notes.retain(|note| {
                !matches!(
                    note.topic,
                    Topic::AccessesAtUnmap | Topic::AccessesAtMap | Topic::AccessesLeftOut
                )
            });
        }
        if notes.is_empty() {
            return None;
        }
        notes.sort_by_key(|note| !note.topic.is_assumption());
        let words = |note: &Note| match note.words() {
            (words, None) => sentence![words, "."],
            (before, Some(after)) => {
                let count = match note.topic.is_assumption() {
                    true => Figure::assumed(note.count as f64, Unit::Count),
                    false => Figure::count(note.count),
                };
                sentence![before, count, after, "."]
            }
        };
        Some(Self {
            trace: loaded.label.clone(),
            notes: notes.iter().map(words).collect(),
            assumptions: notes
                .iter()
                .filter(|note| note.topic.is_assumption())
                .count(),
            is_cut: notes.iter().any(|note| note.topic == Topic::CutLine),
        })
    }
}

/// Whose traces a report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Those in the binary.
    Bundled,
    /// Files named on the command line.
    User,
}

/// The wait for one invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Wait {
    /// How long it is, in nanoseconds.
    pub time: Figure,
    /// Where the time was derived from cycles: how many, at what clock.
    pub cycles: Option<(Figure, Clock)>,
}

/// The clock of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Clock {
    /// Its frequency in GHz.
    pub figure: Figure,
    /// Empty if this machine tells its clock, else that it does not.
    pub note: &'static str,
}

/// Where the numbers come from.
#[derive(Clone, Debug, Serialize)]
pub struct Provenance {
    /// The command line, as one could type it again.
    pub command: String,
    /// Version of the program.
    pub version: &'static str,
    /// Commit that the program was built from, or `unknown`.
    pub commit: &'static str,
    /// Model of this machine's CPU, or `unknown`.
    pub cpu: String,
    /// Number of this machine's CPUs.
    pub cpus: usize,
    /// Whether the times that are tagged measured were measured for this report.
    pub timings: timings::Origin,
    /// The traces, variants among them.
    pub traces: Vec<TraceOrigin>,
    /// The page's path as given.
    pub page: String,
    /// That of what viewers of time lines open, if it was asked for.
    pub perfetto: Option<String>,
}

/// A trace file, and what identifies it.
#[derive(Clone, Debug, Serialize)]
pub struct TraceOrigin {
    /// Name of the file, as given by the user.
    pub name: String,
    /// Size of the file as stored.
    pub bytes: u64,
    /// SHA-256 of the file, hexadecimal.
    pub sha256: String,
    /// Number of its events.
    pub events: Figure,
    /// Whether it is a variant of another bundled trace.
    pub is_variant: bool,
}

impl Report {
    /// Whether no trace of it has accesses of its own, so that nothing is said of misses.
    #[must_use]
    pub fn is_of_captures(&self) -> bool {
        self.verdicts.is_empty() && !self.captures.is_empty()
    }

    /// Whether events of the trace of this name were lost.
    #[must_use]
    pub fn is_lossy(&self, trace: &str) -> bool {
        self.losses.iter().any(|loss| loss.trace == trace)
    }

    /// The worst loss of the traces, in words; `None` where none is known of.
    #[must_use]
    pub fn loss_sentence(&self) -> Option<Sentence> {
        let by_share = |a: &&Loss, b: &&Loss| a.share.value.total_cmp(&b.share.value);
        let worst = self.losses.iter().max_by(by_share)?;
        let others = match self.losses.len() {
            1 => "",
            _ => " and others",
        };
        let name = printable(&worst.trace, 24);
        Some(sentence![
            "LOST: ",
            worst.share,
            format!(
                " of the events of {name}{others}, at least: nothing below holds. Enlarge buffer_size_kb."
            ),
        ])
    }

    /// What the waits of systems assume.
    #[must_use]
    pub fn wait_sentence(&self) -> Sentence {
        let mut says = sentence!["wait: each invalidation "];
        says.0.extend(self.wait_of_each().0);
        says
    }

    /// What one invalidation takes, behind the word.
    #[must_use]
    pub fn wait_of_each(&self) -> Sentence {
        match self.wait.cycles {
            Some((cycles, clock)) => sentence![
                cycles,
                " [rIOMMU] at ",
                clock.figure,
                clock.note,
                " = ",
                self.wait.time,
                " (assumed; yours: --inv-ns)",
            ],
            None => sentence![self.wait.time, " (assumed, --inv-ns)"],
        }
    }

    /// What the oracle found, if it ran, and what was skipped.
    #[must_use]
    pub fn oracle_sentence(&self) -> Option<Sentence> {
        let totals = self.oracle?;
        if totals.checked_accesses.value == 0.0 && totals.violations.value == 0.0 {
            return None; // nothing was accessed that could have been checked
        }
        let plural = if totals.violations.value == 1.0 {
            ""
        } else {
            "s"
        };
        let mut words = sentence![
            totals.violations,
            format!(" violation{plural} in "),
            totals.checked_accesses,
            " accesses checked (counted)",
        ];
        if totals.skipped_anomalies.value + totals.skipped_limits.value > 0.0 {
            words.0.extend(
                sentence![
                    "; lines skipped: ",
                    totals.skipped_anomalies,
                    " anomalies, ",
                    totals.skipped_limits,
                    " limits",
                ]
                .0,
            );
        }
        words.0.push(".".into());
        Some(words)
    }

    /// What became of a device's attempts on unmapped pages, if the oracle watched any.
    #[must_use]
    pub fn attempts_sentence(&self) -> Option<Sentence> {
        let totals = self.oracle?;
        if totals.attempts.value == 0.0 {
            return None;
        }
        let words = sentence![
            totals.attempts,
            " tries on unmapped pages: ",
            totals.attempts_blocked,
            " blocked, ",
            totals.attempts_stale,
            " stale, within the windows above.",
        ];
        Some(words)
    }

    /// The first violation in words, with the system's name.
    #[must_use]
    pub fn first_violation(&self) -> Option<String> {
        let of = |row: &SystemRow| Some(format!("{}: {}", row.name, row.first_violation.as_ref()?));
        self.systems.iter().find_map(of)
    }
}

/// What the oracle found over all systems.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OracleTotals {
    /// Violations of a safety property; must be 0.
    pub violations: Figure,
    /// Accesses checked, attempts among them.
    pub checked_accesses: Figure,
    /// Attempts on pages that had just been unmapped.
    pub attempts: Figure,
    /// Those that were blocked.
    pub attempts_blocked: Figure,
    /// Those that succeeded within the window of a deferred policy.
    pub attempts_stale: Figure,
    /// Lines of traces skipped because they do not fit.
    pub skipped_anomalies: Figure,
    /// Lines of traces skipped because the replay would be too large.
    pub skipped_limits: Figure,
}

impl OracleTotals {
    /// Whether something was checked, nothing was wrong, and nothing was left out.
    #[must_use]
    pub fn is_well(&self) -> bool {
        let skipped = self.skipped_anomalies.value + self.skipped_limits.value;
        self.checked_accesses.value > 0.0 && self.violations.value + skipped == 0.0
    }

    /// Sums over `systems` (what was skipped is the same for each, up to what their designs can
    /// hold: the most); `None` if there are none.
    #[must_use]
    pub fn of(systems: &[SystemRow]) -> Option<Self> {
        systems.first()?;
        let sum =
            |of: fn(&SystemRow) -> f64| Figure::counted(systems.iter().map(of).sum(), Unit::Count);
        let most = |of: fn(&SystemRow) -> f64| {
            Figure::counted(systems.iter().map(of).fold(0.0, f64::max), Unit::Count)
        };
        Some(Self {
            violations: sum(|row| row.violations.value),
            checked_accesses: sum(|row| row.oracle_checked_accesses.value),
            attempts: sum(|row| row.attempts_blocked.value + row.attempts_stale.value),
            attempts_blocked: sum(|row| row.attempts_blocked.value),
            attempts_stale: sum(|row| row.attempts_stale.value),
            skipped_anomalies: most(|row| row.skipped_anomalies.value),
            skipped_limits: most(|row| row.skipped_limits.value),
        })
    }
}
