// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What an exhibit is: its data judged and shown. The module above has the theory.

use ioatlas_present::{Cell, Table, Tag, plot::Plot};
use serde::Serialize;

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

impl Judgement {
    /// Of a whole exhibit: reproduced if every finding is, not if none is even weak, else weak.
    pub fn of(statements: &[Statement]) -> Self {
        let found: Vec<&Found> = statements.iter().flat_map(|s| &s.found).collect();
        let mut places: Vec<&str> = Vec::new();
        for found in &found {
            if !places.contains(&found.on) {
                places.push(found.on);
            }
        }
        let count = |place: &str| {
            let here = |which| {
                let such = found.iter().filter(|f| f.on == place);
                such.filter(|f| f.judgement.verdict == which).count()
            };
            format!(
                "{place}: {} reproduced, {} weak, {} not",
                here(Verdict::Reproduced),
                here(Verdict::Weak),
                here(Verdict::Not)
            )
        };
        let by_place: Vec<String> = places.iter().map(|place| count(place)).collect();
        let verdict = Verdict::all(found.iter().map(|f| f.judgement.verdict));
        verdict.because(format!(
            "{} statements; {}",
            statements.len(),
            by_place.join("; ")
        ))
    }
}

/// What a document says of a result, and what is found of it here.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Statement {
    /// In our words, with the section.
    pub says: &'static str,
    /// Their number, or their word where they give none.
    pub theirs: &'static str,
    /// When it counts as reproduced, and when as weak. Otherwise it is not.
    pub rule: &'static str,
    /// What we see, one for each kernel or model.
    pub found: Vec<Found>,
}

/// What we see of a statement in one place.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Found {
    /// Where: a kernel or a model.
    pub on: &'static str,
    /// The verdict, and our numbers.
    #[serde(flatten)]
    pub judgement: Judgement,
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
    /// The verdict, of the data alone.
    fn judge(data: &Self::Data) -> Judgement;
    /// The data as table and drawings.
    fn show(data: &Self::Data) -> Shown;
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
        Ok(Made {
            about: E::ABOUT,
            judgement: E::judge(&data),
            statements: Vec::new(),
            shown: E::show(&data),
        })
    }
}

/// An exhibit after its run, as the page and JSON have it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Made {
    #[serde(flatten)]
    pub about: About,
    #[serde(flatten)]
    pub judgement: Judgement,
    /// What the document says of results, one by one. Empty: the claim is all.
    pub statements: Vec<Statement>,
    #[serde(flatten)]
    pub shown: Shown,
}

impl Made {
    /// An exhibit that is judged by its statements.
    pub fn by_statements(about: About, statements: Vec<Statement>, shown: Shown) -> Self {
        Made {
            about,
            judgement: Judgement::of(&statements),
            statements,
            shown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(verdicts: &[Verdict]) -> Statement {
        let found = |verdict: &Verdict| Found {
            on: "here",
            judgement: Judgement {
                verdict: *verdict,
                reason: "because".into(),
            },
        };
        Statement {
            says: "so",
            theirs: "1",
            rule: "2",
            found: verdicts.iter().map(found).collect(),
        }
    }

    #[test]
    fn an_exhibit_is_as_good_as_all_of_its_findings() {
        use Verdict::{Not, Reproduced, Weak};
        let of = |all: &[&[Verdict]]| {
            let statements: Vec<Statement> = all.iter().map(|v| statement(v)).collect();
            Judgement::of(&statements).verdict
        };
        assert_eq!(of(&[&[Reproduced], &[Reproduced, Reproduced]]), Reproduced);
        assert_eq!(of(&[&[Reproduced], &[Reproduced, Not]]), Weak);
        assert_eq!(of(&[&[Not], &[Weak]]), Weak);
        assert_eq!(of(&[&[Not, Not]]), Not);
        assert_eq!(of(&[]), Not, "nothing was found");
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
