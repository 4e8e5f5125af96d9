// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Why a result is out of its range.
//!
//! One table, by the row's name. A note is shown only with a row that is out of range; a row
//! without one is not explained, and says so.

use super::rows::Row;
use serde::Serialize;

/// A result, and why it is not as the paper's.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Noted {
    #[serde(flatten)]
    pub row: Row,
    /// Why it is out of its range; none if it is in it.
    pub note: Option<&'static str>,
}

/// What is said of a row without an explanation.
const UNEXPLAINED: &str = "Not explained yet.";
/// The same of one under other parameters.
const CHANGED: &str = "Parameters, locks or seed are not those as shipped, of which the notes are.";

/// Of designs that the paper puts a point or two apart.
const AS_GOOD_AS_EQUAL: &str = "They are as good as equal: each is known to 1 %. A call of the heap costs about what counting a page's references does here, and either is a small part of a request; the model charges instructions by \
     what they are for, and does not know how well optimised either was in the paper.";

/// Names of rows, and the note of each.
const NOTES: &[(&str, &str)] = &[
    ("kmalloc less identity, 1 CPU, memcached", AS_GOOD_AS_EQUAL),
    ("kmalloc less identity, 9 CPUs, memcached", AS_GOOD_AS_EQUAL),
    (
        "kmalloc less the better of magazine and identity, 16 CPUs, request-response",
        AS_GOOD_AS_EQUAL,
    ),
    (
        "strict, more than 6 CPUs: the best design less the worst",
        "It is EiovaR alone, and beyond one socket: on up to 9 CPUs all are bound by the unit, and alike. On 16, every other hand-over of the lock of its tree crosses sockets, and a pair takes longer under it than in the unit. \
         The model makes that lock about a sixth too slow, as its wait with per-core invalidation tells, which is nearly 75 % of cycles here and nearly 70 % in the paper; at 70 % the lock would keep up with the unit.",
    ),
    (
        super::frames::FLAT[0],
        "It is the magazines alone, and with 16 CPUs: what CPUs hold in magazines and queues fills in for longer than the first half of these short repetitions, and slows down then \
         (a third of kmalloc's tables in the end). With 8 CPUs, as --quick has it, they are flat from the first repetition on.",
    ),
    (
        "EiovaR, 16 CPUs: latency beyond no IOMMU",
        "One connection a CPU leaves CPUs idle most of the time, and what a round trip takes outside is drawn evenly, so they seldom meet at the lock. Interrupts and batches, \
         which bring CPUs to the lock together, are not modelled.",
    ),
];

/// Which model the rows are of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// Parameters and seed as shipped, which the notes explain.
    Shipped,
    /// Others, which the notes do not explain.
    Changed,
}

/// Each row with its note, if it needs one.
pub(crate) fn noted(rows: Vec<Row>, of: Of) -> Vec<Noted> {
    let note = |name| match of {
        Of::Shipped => note(name),
        Of::Changed => CHANGED,
    };
    let of = |row: Row| Noted {
        note: (!row.in_range).then(|| note(row.name)),
        row,
    };
    rows.into_iter().map(of).collect()
}

fn note(name: &str) -> &'static str {
    let found = NOTES.iter().find(|(of, _)| *of == name);
    found.map_or(UNEXPLAINED, |(_, note)| note)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stated::Kind;

    fn row(name: &'static str, in_range: bool) -> Row {
        Row {
            name,
            paper: "1",
            stated: None,
            low: 0.0,
            high: 1.0,
            ours: 2.0,
            ratio: None,
            unit: "",
            kind: Kind::Predicted,
            in_range,
            section: "1",
        }
    }

    #[test]
    fn only_what_is_out_of_range_has_a_note() {
        let (name, note) = NOTES[0];
        let rows = vec![row(name, true), row(name, false), row("another", false)];
        let notes: Vec<_> = noted(rows, Of::Shipped)
            .iter()
            .map(|noted| noted.note)
            .collect();
        assert_eq!(notes, [None, Some(note), Some(UNEXPLAINED)]);
    }
}
