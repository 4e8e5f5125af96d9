// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the paper says of strategies, and how each statement is judged.

use super::Results;
use crate::papers::{
    Judgement,
    wiosca10::{Verdict, percent},
};

/// A statement, and how it is judged.
pub struct Claim {
    pub says: &'static str,
    pub theirs: &'static str,
    pub rule: &'static str,
    pub judge: fn(&Results) -> Judgement,
}

pub(super) const MOST: Claim = Claim {
    says: "ALH and MPRE reduce the miss rate the most (4.9).",
    theirs: "the most",
    rule: "of ALH, MPRE, OPT-EV, EH, OF, twice the entries and twice the ways these two save most, each at least 10 %; weak: one of them saves most, and at least 10 %",
    judge: |results| {
        let [entries, ways] = results.saved_by_size();
        let others = [
            ("opt-ev", results.saved("opt-ev")),
            ("eh", results.saved("eh")),
            ("of", results.saved("of")),
        ];
        let others = others
            .into_iter()
            .chain([("64 entries", entries), ("4 ways", ways)]);
        let (rival, most) = others.fold(
            ("", f64::MIN),
            |best, one| if one.1 > best.1 { one } else { best },
        );
        let two = [results.saved("alh"), results.saved("mpre")];
        let (better, worse) = (two[0].max(two[1]), two[0].min(two[1]));
        let verdict = if worse > most && worse >= 0.1 {
            Verdict::Reproduced
        } else if better > most && better >= 0.1 {
            Verdict::Weak
        } else {
            Verdict::Not
        };
        verdict.because(format!(
            "ALH saves {}, MPRE {}; the best of the others, {rival}, {}",
            percent(two[0]),
            percent(two[1]),
            percent(most)
        ))
    },
};

pub(super) const OPTIMAL: Claim = Claim {
    says: "Optimal eviction without prefetching does not reduce the miss rate significantly (4.9).",
    theirs: "not significantly",
    rule: "it saves at most 5 % of the misses; weak: 10 %",
    judge: |results| {
        let saved = results.saved("opt-ev");
        Verdict::at_most(saved, 0.05, 0.1).because(format!("saves {}", percent(saved)))
    },
};

pub(super) const HINTS: Claim = Claim {
    says: "Eviction hints have little positive impact, if any (4.9).",
    theirs: "little, if any",
    rule: "they save at most 5 % of the misses; weak: 10 %",
    judge: |results| {
        let saved = results.saved("eh");
        Verdict::at_most(saved, 0.05, 0.1).because(format!("save {}", percent(saved)))
    },
};

pub(super) const HINTS_WORSE: Claim = Claim {
    says: "With several NICs eviction hints even lower the hit rate (4.9).",
    theirs: "lower",
    rule: "more misses than the baseline; weak: as many, to 0.1 %",
    judge: |results| {
        let saved = results.saved("eh");
        Verdict::at_most(saved, -f64::EPSILON, 0.001).because(format!(
            "{} misses instead of {}, saving {}",
            results.misses("eh"),
            results.misses("baseline"),
            percent(saved)
        ))
    },
};

pub(super) const OFFSET_ONE: Claim = Claim {
    says: "Offsetting consistent mappings has no impact with one device (4.9).",
    theirs: "neither positive nor negative",
    rule: "at most 1 % of the misses more or less; weak: 3 %",
    judge: |results| {
        let saved = results.saved("of");
        Verdict::at_most(saved.abs(), 0.01, 0.03).because(format!("saves {}", percent(saved)))
    },
};

pub(super) const OFFSET_SEVERAL: Claim = Claim {
    says: "Offsetting consistent mappings has a significant positive impact with several NICs (4.9).",
    theirs: "significant",
    rule: "it saves at least 10 % of the misses; weak: 3 %",
    judge: |results| {
        let saved = results.saved("of");
        let pages: Vec<String> = results.consistent.iter().map(u64::to_string).collect();
        Verdict::at_least(saved, 0.1, 0.03).because(format!(
            "saves {}; the devices have {} consistent mappings, so few meet in a set of an IOTLB of 16 sets",
            percent(saved),
            pages.join(" and ")
        ))
    },
};

/// What a buffer of eight saves beyond one of four, in parts of the baseline's misses: with ALH,
/// and with ALH and MPRE.
fn by_buffer(results: &Results) -> [f64; 2] {
    [
        ("alh+8-prefetch", "alh"),
        ("alh+mpre+8-prefetch", "alh+mpre"),
    ]
    .map(|(eight, four)| results.saved(eight) - results.saved(four))
}

fn by_buffer_text([alh, with_mpre]: [f64; 2]) -> String {
    format!(
        "{} more with ALH, {} with ALH+MPRE",
        percent(alh),
        percent(with_mpre)
    )
}

pub(super) const BUFFER_NIC: Claim = Claim {
    says: "More entries in the prefetch buffer raise the hit rate of NICs (4.9).",
    theirs: "raised",
    rule: "with 8 instead of 4, 5 % of the baseline's misses are saved besides, both with ALH and with ALH+MPRE; weak: 1 %, or one of them",
    judge: |results| {
        let saved = by_buffer(results);
        let parts = saved.map(|saved| Verdict::at_least(saved, 0.05, 0.01));
        Verdict::all(parts).because(by_buffer_text(saved))
    },
};

pub(super) const BUFFER_SCSI: Claim = Claim {
    says: "More entries in the prefetch buffer have no impact with SCSI (4.9).",
    theirs: "none",
    rule: "with 8 instead of 4, at most 1 % of the baseline's misses is saved besides, both with ALH and with ALH+MPRE; weak: 5 %, or one of them",
    judge: |results| {
        let saved = by_buffer(results);
        let parts = saved.map(|saved| Verdict::at_most(saved, 0.01, 0.05));
        Verdict::all(parts).because(by_buffer_text(saved))
    },
};

pub(super) const DIRECTION: Claim = Claim {
    says: "One direction is enough: it is questionable whether both neighbours should be prefetched, for addresses descend (4.6).",
    theirs: "no number",
    rule: "SD-ALH misses at most 1.05 times as often as ALH; weak: 1.2 times",
    judge: |results| {
        let ratio = results.ratio("sd-alh", "alh");
        Verdict::at_most(ratio, 1.05, 1.2).because(format!(
            "{ratio:.2} times: {} instead of {} misses",
            results.misses("sd-alh"),
            results.misses("alh")
        ))
    },
};

pub(super) const DESCENDING: Claim = Claim {
    says: "Mapping in descending order lets single-direction hints work on scatter-gather lists (4.6).",
    theirs: "preferable, no number",
    rule: "SD-ALH alone saves at most 10 % and with descending order at least 50 % of the misses; weak: descending order saves at least 20 % of SD-ALH's misses",
    judge: |results| {
        let (alone, with) = (results.saved("sd-alh"), results.saved("sd-alh+descending"));
        let verdict = if alone <= 0.1 && with >= 0.5 {
            Verdict::Reproduced
        } else if results.ratio("sd-alh+descending", "sd-alh") <= 0.8 {
            Verdict::Weak
        } else {
            Verdict::Not
        };
        verdict.because(format!(
            "SD-ALH saves {}, with descending order {}, with MPRE besides {}",
            percent(alone),
            percent(with),
            percent(results.saved("sd-alh+mpre+descending"))
        ))
    },
};
