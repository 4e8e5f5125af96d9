// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What an exhibit is: its data judged and shown. The module above has the theory.

use super::parameters::Parameter;
use crate::stated::{Compared, Kind};
use ioatlas_present::{Cell, Table, Tag, plot::Plot};
use serde::Serialize;
use std::{borrow::Cow, fmt};

/// What an exhibit is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct About {
    /// Short name of the document: `ATC'15`.
    pub paper: &'static str,
    /// The document's name for it: `table 1`.
    pub exhibit: &'static str,
    /// What it shows, in a few words.
    pub title: &'static str,
    /// What the document says of it.
    pub claim: &'static str,
}

impl About {
    /// Stem of its files: `atc15-table-1`.
    pub fn stem(&self) -> String {
        let kept = |c: char| c.is_ascii_alphanumeric() || c == ' ';
        let words: String = format!("{} {}", self.paper, self.exhibit);
        let words: String = words.chars().filter(|c| kept(*c)).collect();
        words.to_lowercase().replace(' ', "-")
    }
}

/// Whether a claim holds here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Reproduced,
    /// Part of it holds, or it holds less clearly.
    Weak,
    Not,
}

impl Verdict {
    /// The word shown for it, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Reproduced => "reproduced",
            Verdict::Weak => "weak",
            Verdict::Not => "not",
        }
    }

    /// Of a number of which more is better for the claim.
    pub fn at_least(value: f64, reproduced: f64, weak: f64) -> Self {
        match value {
            value if value >= reproduced => Verdict::Reproduced,
            value if value >= weak => Verdict::Weak,
            _ => Verdict::Not,
        }
    }

    /// Of a number of which less is better for the claim.
    pub fn at_most(value: f64, reproduced: f64, weak: f64) -> Self {
        Self::at_least(-value, -reproduced, -weak)
    }

    /// Of several parts of a claim: reproduced if all are, not if all are not.
    pub fn all(parts: impl IntoIterator<Item = Verdict>) -> Self {
        let mut parts = parts.into_iter();
        let Some(first) = parts.next() else {
            return Verdict::Not;
        };
        parts.fold(
            first,
            |whole, part| if part == whole { whole } else { Verdict::Weak },
        )
    }

    pub fn because(self, reason: impl Into<String>) -> Judgement {
        Judgement {
            verdict: self,
            reason: reason.into(),
        }
    }
}

/// A verdict and why, with the numbers it follows from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Judgement {
    pub verdict: Verdict,
    pub reason: String,
}

/// How many findings came out how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct VerdictCounts {
    pub reproduced: usize,
    pub weak: usize,
    pub not: usize,
    /// Fitted to what they are compared with, so no evidence.
    pub fitted: usize,
    /// True by what went in, so no evidence.
    pub input: usize,
}

impl VerdictCounts {
    pub fn of<'f>(all: impl IntoIterator<Item = &'f Found>) -> Self {
        let mut counts = VerdictCounts::default();
        for found in all {
            *match (found.verdict, found.kind) {
                (Some(Verdict::Reproduced), _) => &mut counts.reproduced,
                (Some(Verdict::Weak), _) => &mut counts.weak,
                (Some(Verdict::Not), _) => &mut counts.not,
                (None, Kind::Fitted) => &mut counts.fitted,
                (None, Kind::Predicted | Kind::Input) => &mut counts.input,
            } += 1;
        }
        counts
    }

    pub fn judged(&self) -> usize {
        self.reproduced + self.weak + self.not
    }

    /// How many of those judged are reproduced: `6 of 7`.
    pub fn short(&self) -> String {
        match self.judged() {
            0 => "none judged".into(),
            judged => format!("{} of {judged}", self.reproduced),
        }
    }

    /// The others: `1 weak, 2 fitted`; empty where there are none.
    pub fn others(&self) -> String {
        let named = [
            (self.weak, "weak"),
            (self.not, "not"),
            (self.fitted, "fitted"),
            (self.input, "given"),
        ];
        let some = named.into_iter().filter(|(count, _)| *count > 0);
        let some: Vec<String> = some
            .map(|(count, name)| format!("{count} {name}"))
            .collect();
        some.join(", ")
    }
}

impl fmt::Display for VerdictCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())?;
        match self.others().as_str() {
            "" => Ok(()),
            others => write!(f, " ({others})"),
        }
    }
}

/// The findings of one place: a kernel or a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Placed {
    pub on: &'static str,
    #[serde(flatten)]
    pub counts: VerdictCounts,
}

/// What a document says of a result, and what is found of it here.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Statement {
    /// In our words, with the section.
    pub says: Cow<'static, str>,
    /// Their number, or their word where they give none.
    pub theirs: &'static str,
    /// When it counts as reproduced, and when as weak. Otherwise it is not.
    pub rule: Cow<'static, str>,
    /// What we see, one for each kernel or model.
    pub found: Vec<Found>,
}

/// What we see of a statement in one place.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Found {
    /// Where: a kernel or a model.
    pub on: &'static str,
    /// How our numbers come about.
    pub kind: Kind,
    /// None of what is no evidence.
    pub verdict: Option<Verdict>,
    /// Our numbers.
    pub reason: String,
    /// Those of which the document has one, too.
    pub compared: Vec<Compared>,
}

impl Found {
    /// What was not looked at before.
    pub fn new(on: &'static str, judgement: Judgement) -> Self {
        Found::of(on, Kind::Predicted, judgement)
    }

    pub fn of(on: &'static str, kind: Kind, Judgement { verdict, reason }: Judgement) -> Self {
        Found {
            on,
            kind,
            verdict: kind.is_evidence().then_some(verdict),
            reason,
            compared: Vec::new(),
        }
    }

    /// The same, with these numbers beside the document's.
    pub fn beside(self, compared: impl IntoIterator<Item = Compared>) -> Self {
        Found {
            compared: compared.into_iter().collect(),
            ..self
        }
    }

    /// The word shown: the verdict, or why there is none.
    pub fn word(&self) -> &'static str {
        match (self.verdict, self.kind) {
            (Some(verdict), _) => verdict.name(),
            (None, Kind::Fitted) => "fitted",
            (None, Kind::Predicted | Kind::Input) => "given",
        }
    }
}

/// What is shown of an exhibit.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Shown {
    /// What its numbers are.
    #[serde(flatten)]
    pub table: Table,
    #[serde(skip)]
    pub plots: Vec<Plot>,
    /// How it was made, and what differs from the document.
    pub notes: Vec<String>,
}

impl Shown {
    /// A table of `columns` with their tags, no drawings yet.
    pub fn table<N: Into<String>>(
        columns: impl IntoIterator<Item = (N, Option<Tag>)>,
        rows: impl IntoIterator<Item = Vec<Cell>>,
    ) -> Self {
        Shown {
            table: Table::tagged(columns, rows),
            ..Shown::default()
        }
    }

    /// Where the numbers of table and drawings come from: each source once, ordered as
    /// [`Tag::LEGEND`] orders them.
    pub fn sources(&self) -> impl Iterator<Item = Tag> {
        let drawn = self.plots.iter().map(|plot| plot.tag);
        let tabled = self.table.tags.iter().flatten().copied();
        let all: Vec<Tag> = tabled.chain(drawn).collect();
        let known = Tag::LEGEND.into_iter().map(|(tag, _)| tag);
        known.filter(move |tag| all.contains(tag))
    }
}

/// One figure or table of a document.
pub(crate) trait Experiment: Sync {
    /// What running it gives.
    type Data;
    /// What it is about.
    const ABOUT: About;
    /// Makes the data; `progress` is told what is being done.
    ///
    /// # Errors
    /// A sentence: something failed that must not.
    fn run(&self, progress: &dyn Fn(&str)) -> Result<Self::Data, String>;
    /// What the document says of it, each statement judged by the data alone.
    fn judge(data: &Self::Data) -> Vec<Statement>;
    /// The data as table and drawings.
    fn show(data: &Self::Data) -> Shown;
    /// What goes into it.
    fn parameters() -> Vec<Parameter>;
}

/// An exhibit, whatever the type of its data.
pub(crate) trait Runs: Sync {
    /// What the exhibit is about, known without running it.
    fn about(&self) -> About;
    /// Runs the exhibit, judges the data and shows them.
    ///
    /// # Errors
    /// The sentence of [`Experiment::run`].
    fn make(&self, progress: &dyn Fn(&str)) -> Result<Made, String>;
}

impl<E: Experiment> Runs for E {
    fn about(&self) -> About {
        E::ABOUT
    }
    fn make(&self, progress: &dyn Fn(&str)) -> Result<Made, String> {
        let data = self.run(progress)?;
        let made = Made::new(E::ABOUT, E::judge(&data), E::show(&data));
        Ok(made.with(E::parameters()))
    }
}

/// An exhibit after its run, as the page and JSON have it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Made {
    #[serde(flatten)]
    pub about: About,
    /// Of all findings.
    pub counts: VerdictCounts,
    /// The same by place.
    pub places: Vec<Placed>,
    /// What the document says of results, one by one.
    pub statements: Vec<Statement>,
    #[serde(flatten)]
    pub shown: Shown,
    /// What goes into it; written once for all exhibits.
    #[serde(skip)]
    pub parameters: Vec<Parameter>,
}

impl Made {
    pub fn new(about: About, statements: Vec<Statement>, shown: Shown) -> Self {
        let found = || statements.iter().flat_map(|statement| &statement.found);
        let mut places: Vec<&str> = Vec::new();
        for found in found() {
            if !places.contains(&found.on) {
                places.push(found.on);
            }
        }
        let placed = |on: &&'static str| Placed {
            on,
            counts: VerdictCounts::of(found().filter(|found| found.on == *on)),
        };
        Made {
            about,
            counts: VerdictCounts::of(found()),
            places: places.iter().map(placed).collect(),
            statements,
            shown,
            parameters: Vec::new(),
        }
    }

    /// The same, with what went into it.
    pub fn with(self, parameters: Vec<Parameter>) -> Self {
        Made { parameters, ..self }
    }

    /// Each place with how its findings came out; a single place without its name.
    pub fn outcomes(&self) -> Vec<String> {
        let all = self.places.iter();
        let named = |placed: &Placed| match self.places.len() {
            1 => placed.counts.to_string(),
            _ => format!("{}: {}", placed.on, placed.counts),
        };
        all.map(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(on: &'static str, kind: Kind, verdict: Verdict) -> Found {
        Found::of(on, kind, verdict.because("so"))
    }

    fn made(found: Vec<Found>) -> Made {
        let about = About {
            paper: "P",
            exhibit: "e",
            title: "t",
            claim: "c",
        };
        let statement = Statement {
            says: "so".into(),
            theirs: "1",
            rule: "2".into(),
            found,
        };
        Made::new(about, vec![statement], Shown::default())
    }

    #[test]
    fn what_was_fitted_or_given_counts_neither_for_nor_against() {
        use Kind::{Fitted, Input, Predicted};
        use Verdict::{Not, Reproduced, Weak};
        let all = [
            found("a", Predicted, Reproduced),
            found("a", Fitted, Reproduced),
            found("a", Fitted, Not),
            found("a", Input, Reproduced),
            found("a", Predicted, Weak),
        ];
        let counts = VerdictCounts::of(&all);
        assert_eq!((counts.judged(), counts.reproduced), (2, 1));
        assert_eq!(counts.to_string(), "1 of 2 (1 weak, 2 fitted, 1 given)");
        assert_eq!(
            all.each_ref().map(Found::word)[1..4],
            ["fitted", "fitted", "given"]
        );
        let fitted = VerdictCounts::of(&all[1..3]);
        assert_eq!(fitted.to_string(), "none judged (2 fitted)");
        let all_seen = VerdictCounts::of(&all[..1]);
        assert_eq!(all_seen.to_string(), "1 of 1");
    }

    #[test]
    fn places_are_counted_apart_and_named_where_there_are_several() {
        use Kind::Predicted;
        use Verdict::{Not, Reproduced};
        let (here, there) = (
            found("here", Predicted, Reproduced),
            found("there", Predicted, Not),
        );
        let both = made(vec![here.clone(), there, here.clone()]);
        assert_eq!(both.outcomes(), ["here: 2 of 2", "there: 0 of 1 (1 not)"]);
        assert_eq!(both.counts.judged(), 3);
        assert_eq!(made(vec![here]).outcomes(), ["1 of 1"]);
    }

    #[test]
    fn thresholds_belong_to_the_better_verdict() {
        let more = |value| Verdict::at_least(value, 50.0, 25.0);
        assert_eq!(more(50.0), Verdict::Reproduced);
        assert_eq!(more(49.9), Verdict::Weak);
        assert_eq!(more(24.9), Verdict::Not);
        let less = |value| Verdict::at_most(value, 5.0, 10.0);
        assert_eq!(less(5.0), Verdict::Reproduced);
        assert_eq!(less(10.0), Verdict::Weak);
        assert_eq!(less(10.1), Verdict::Not);
        assert_eq!(less(f64::NAN), Verdict::Not);
    }
}
