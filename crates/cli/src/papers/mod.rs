// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas papers`: the figures and tables of the four documents, ours beside theirs.
//!
//! # Theory
//!
//! An [`Exhibit`] is one figure or table. It *runs* to data, *judges* the data, and *shows* them. Judging is a function of the
//! data alone, with its thresholds stated beside it, so that tests can give it data that reproduce the claim and data that do not; no
//! verdict is written down. [`exhibits`] is the registry; a module a document adds its own.
//!
//! A verdict is on the claim as [`About::claim`] words it: *reproduced*, *weak* (part of it, or less clearly), or *not*. Numbers of the
//! documents appear only where our copy of the text has them.

mod atc15;
mod output;
mod page;
mod plot;

use crate::Answer;
use crate::args::PapersArguments;
use crate::error::Error;
use crate::progress::{Bar, Progress};
use serde::{Serialize, Serializer};
use std::ffi::OsString;

/// What an exhibit is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct About {
    /// Short name of the document: `ATC'15`.
    pub paper: &'static str,
    /// `table 1`.
    pub exhibit: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// What the document says of it.
    pub claim: &'static str,
}

impl About {
    /// Stem of its files: `atc15-table-1`.
    pub fn stem(&self) -> String {
        let kept = |c: char| c.is_ascii_alphanumeric() || c == ' ';
        let words: String = self.paper.chars().filter(|c| kept(*c)).collect();
        format!("{words} {}", self.exhibit)
            .to_lowercase()
            .replace(' ', "-")
    }
}

/// Whether a claim holds here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// It does.
    Reproduced,
    /// Part of it does, or less clearly.
    Weak,
    /// It does not.
    Not,
}

impl Verdict {
    /// As shown.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Reproduced => "reproduced",
            Verdict::Weak => "weak",
            Verdict::Not => "not",
        }
    }
}

/// A verdict and why, with the numbers it follows from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Judgement {
    /// Whether the claim holds.
    pub verdict: Verdict,
    /// Why.
    pub reason: String,
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    /// Words.
    Words(String),
    /// A number.
    Number(f64),
}

impl Cell {
    /// Of a count.
    pub fn count(count: u64) -> Self {
        Cell::Number(count as f64)
    }

    /// As shown: whole numbers whole, others to two decimals.
    pub fn text(&self) -> String {
        match self {
            Cell::Words(words) => words.clone(),
            Cell::Number(number) if number.fract() == 0.0 => format!("{number:.0}"),
            Cell::Number(number) => format!("{number:.2}"),
        }
    }
}

impl From<&str> for Cell {
    fn from(words: &str) -> Self {
        Cell::Words(words.into())
    }
}

impl From<String> for Cell {
    fn from(words: String) -> Self {
        Cell::Words(words)
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cell::Words(words) => serializer.serialize_str(words),
            Cell::Number(number) => serializer.serialize_f64(*number),
        }
    }
}

/// What is shown of an exhibit.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Shown {
    /// Heading of the table.
    pub columns: Vec<String>,
    /// Its rows, each of a cell a column.
    pub rows: Vec<Vec<Cell>>,
    /// Drawings.
    #[serde(skip)]
    pub plots: Vec<plot::Plot>,
    /// How it was made, and what differs from the document.
    pub notes: Vec<String>,
}

/// One figure or table of a document.
pub(crate) trait Exhibit: Sync {
    /// What running it gives.
    type Data;
    /// What it is about.
    const ABOUT: About;
    /// Makes the data.
    ///
    /// # Errors
    /// A sentence: something failed that must not.
    fn run(&self, progress: &dyn Fn(&str)) -> Result<Self::Data, String>;
    /// The verdict, of the data alone.
    fn judge(data: &Self::Data) -> Judgement;
    /// The data as table and drawings.
    fn show(data: &Self::Data) -> Shown;
}

/// An exhibit whose data nobody needs to know.
pub(crate) trait Runs: Sync {
    /// See [`Exhibit::ABOUT`].
    fn about(&self) -> About;
    /// Runs, judges and shows.
    ///
    /// # Errors
    /// As [`Exhibit::run`].
    fn make(&self, progress: &dyn Fn(&str)) -> Result<Made, String>;
}

impl<E: Exhibit> Runs for E {
    fn about(&self) -> About {
        E::ABOUT
    }
    fn make(&self, progress: &dyn Fn(&str)) -> Result<Made, String> {
        let data = self.run(progress)?;
        Ok(Made {
            about: E::ABOUT,
            judgement: E::judge(&data),
            shown: E::show(&data),
        })
    }
}

/// An exhibit, done.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Made {
    #[serde(flatten)]
    pub about: About,
    #[serde(flatten)]
    pub judgement: Judgement,
    #[serde(flatten)]
    pub shown: Shown,
}

/// Every exhibit, in the order of documents.
pub(crate) fn exhibits() -> Vec<&'static dyn Runs> {
    atc15::exhibits().to_vec()
}

/// All of them, done, and where they come from.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Papers {
    /// The exhibits, in order.
    pub exhibits: Vec<Made>,
    /// Version of the program.
    pub version: &'static str,
    /// Commit that it was built from, or `unknown`.
    pub commit: &'static str,
    /// The files written, in DIR.
    pub files: Vec<String>,
}

pub(crate) fn run(arguments: &PapersArguments, command: &[OsString]) -> Answer {
    match make(arguments, command) {
        Ok(text) => Answer {
            text,
            errors: Vec::new(),
        },
        Err(error) => Answer {
            errors: vec![error],
            ..Answer::default()
        },
    }
}

fn make(arguments: &PapersArguments, command: &[OsString]) -> Result<String, Error> {
    let exhibits = exhibits();
    let abouts: Vec<About> = exhibits.iter().map(|exhibit| exhibit.about()).collect();
    // before the work: what can be known to fail early
    let directory = output::Directory::prepare(&arguments.output, &abouts)?;
    let bar = Bar::default();
    let mut made = Vec::new();
    for (at, exhibit) in exhibits.iter().enumerate() {
        let About {
            paper,
            exhibit: which,
            ..
        } = exhibit.about();
        let progress = |what: &str| {
            bar.at(&format!("{paper}, {which}: {what}"), at, exhibits.len());
        };
        progress("");
        let done = exhibit.make(&progress);
        made.push(done.map_err(|detail| Error::Exhibit {
            exhibit: format!("{paper}, {which}"),
            detail,
        })?);
    }
    drop(bar);
    let mut papers = Papers {
        exhibits: made,
        version: env!("CARGO_PKG_VERSION"),
        commit: env!("IOATLAS_COMMIT"),
        files: Vec::new(),
    };
    papers.files = directory.write(&papers, command)?;
    if arguments.json {
        return Ok(serde_json::to_string_pretty(&papers)? + "\n");
    }
    let mut text = String::new();
    for made in &papers.exhibits {
        let Made {
            about, judgement, ..
        } = made;
        let verdict = judgement.verdict.name();
        text += &format!(
            "{} {} ({}): {verdict}\n  {}\n",
            about.paper, about.exhibit, about.title, judgement.reason
        );
    }
    let page = arguments.output.join(output::PAGE);
    text += &format!(
        "{} written, with {} files beside it\n",
        page.display(),
        papers.files.len() - 1
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhibits_have_names_of_their_own() {
        let mut stems: Vec<String> = exhibits().iter().map(|e| e.about().stem()).collect();
        assert!(stems.contains(&"atc15-figure-6".to_owned()), "{stems:?}");
        let all = stems.len();
        stems.sort();
        stems.dedup();
        assert_eq!(stems.len(), all);
    }

    #[test]
    fn numbers_are_shown_as_what_they_are() {
        assert_eq!(Cell::count(12_345).text(), "12345");
        assert_eq!(Cell::Number(1.0 / 3.0).text(), "0.33");
        let json = serde_json::to_string(&[Cell::from("a"), Cell::Number(0.5)]).unwrap();
        assert_eq!(json, "[\"a\",0.5]");
    }
}
