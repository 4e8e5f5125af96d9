// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `papers`: the figures and tables of the four documents, ours beside theirs.
//!
//! # Theory
//!
//! An [`Experiment`] is one figure or table. It *runs* to data, *judges* the data, and *shows*
//! them. Judging is a function of the data alone, with its thresholds stated beside it, so that
//! tests can give it data that reproduce what is claimed and data that do not; no verdict is
//! written down. [`exhibits`] is the registry; a module a document adds its own.
//!
//! What a document says of an exhibit is a list of [`Statement`]s, each with the rule of its
//! verdict, judged on each kernel or model apart: *reproduced*, *weak* (part of it, or less
//! clearly), or *not*. An exhibit has no word of its own: it says how many of its findings came out
//! how. What was fitted to a statement, or holds by construction, is no evidence of it
//! ([`Kind::is_evidence`](crate::stated::Kind::is_evidence)). Numbers of the documents appear only
//! where our copy of the text has them.
//!
//! Every column of numbers and every drawing says where it comes from: counted, measured, simulated
//! or assumed ([`Tag`](ioatlas_present::Tag)).

mod arguments;
mod atc15;
mod bounce21;
mod experiment;
mod output;
mod page;
mod parameters;
mod random;
mod replays;
mod wiosca10;

use experiment::{
    About, Experiment, Found, Judgement, Made, Runs, Shown, Statement, Verdict, VerdictCounts,
};

use parameters::Parameter;

pub(crate) use arguments::PapersArguments;

use crate::Answer;
use crate::error::Error;
use crate::progress::{Bar, Progress};
use ioatlas_present::wrapped;
use serde::Serialize;
use std::ffi::OsString;

/// Every exhibit, in the order of documents.
pub(crate) fn exhibits() -> Vec<&'static dyn Runs> {
    let mut all = atc15::exhibits().to_vec();
    all.extend(bounce21::exhibits());
    all.extend(wiosca10::exhibits());
    all.push(&replays::Replays);
    all
}

/// A word with which the names of an exhibit's files begin.
///
/// # Errors
/// No name begins with it: a sentence that lists all names.
pub(crate) fn beginning(word: &str) -> Result<String, String> {
    let stems: Vec<String> = exhibits().iter().map(|e| e.about().stem()).collect();
    match !word.is_empty() && stems.iter().any(|stem| stem.starts_with(word)) {
        true => Ok(word.into()),
        false => Err(format!("no exhibit is called so ({})", stems.join(", "))),
    }
}

/// All of them, done, and where they come from.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Papers {
    /// The exhibits, in order.
    pub exhibits: Vec<Made>,
    /// Of all findings of all exhibits.
    pub counts: VerdictCounts,
    /// What goes into the models of these exhibits.
    pub parameters: Vec<Parameter>,
    /// Version of the program.
    pub version: &'static str,
    /// Commit that it was built from, or `unknown`.
    pub commit: &'static str,
    /// The files written, in DIR.
    pub files: Vec<String>,
}

pub(crate) fn run(arguments: &PapersArguments, command: &[OsString]) -> Answer {
    let show = |papers| Answer::show(&papers, arguments.json, |papers| plain(papers, arguments));
    make(arguments, command).map(show).into()
}

fn make(arguments: &PapersArguments, command: &[OsString]) -> Result<Papers, Error> {
    let mut exhibits = exhibits();
    let only = &arguments.only;
    if !only.is_empty() {
        exhibits.retain(|exhibit| {
            let stem = exhibit.about().stem();
            only.iter().any(|word| stem.starts_with(word.as_str()))
        });
    }
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
        made.push(done.map_err(|detail| Error::Experiment {
            exhibit: format!("{paper}, {which}"),
            detail,
        })?);
    }
    drop(bar);
    let found = made.iter().flat_map(|made| &made.statements);
    let mut papers = Papers {
        counts: VerdictCounts::of(found.flat_map(|statement| &statement.found)),
        parameters: parameters::all(&made),
        exhibits: made,
        version: env!("CARGO_PKG_VERSION"),
        commit: ioatlas_cli::COMMIT,
        files: Vec::new(),
    };
    papers.files = directory.write(&papers, command)?;
    Ok(papers)
}

/// Columns of a line.
const WIDTH: usize = 100;

/// Each exhibit with how its findings came out; of what is not reproduced, what it is.
fn plain(papers: &Papers, arguments: &PapersArguments) -> String {
    let mut text = String::new();
    for made in &papers.exhibits {
        let About {
            paper,
            exhibit,
            title,
            ..
        } = made.about;
        let outcomes = made.outcomes().join("; ");
        let head = format!("{paper} {exhibit}, {title}: {outcomes}");
        text += &wrapped(&head, WIDTH, 0, 4);
        for statement in &made.statements {
            let not = |found: &&Found| found.verdict == Some(Verdict::Not);
            for found in statement.found.iter().filter(not) {
                let words = format!(
                    "{} Theirs: {}; {}: {}",
                    statement.says, statement.theirs, found.on, found.reason
                );
                text += &format!("  not  {}", wrapped(&words, WIDTH, 7, 7));
            }
        }
    }
    let all = format!("All findings reproduced: {}. {LEGEND}", papers.counts);
    text += &wrapped(&all, WIDTH, 0, 0);
    text += &format!("{}.\n", parameters::count(&papers.parameters));
    let page = arguments.output.join(output::PAGE);
    text += &format!(
        "{} written, with {} files beside it\n",
        page.display(),
        papers.files.len() - 1
    );
    text
}

/// What the words beside the counts mean.
const LEGEND: &str = "Weak: in part, or less clearly. Fitted: a parameter was chosen by it; given: \
                      it holds by what went in; neither is evidence.";

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
}
