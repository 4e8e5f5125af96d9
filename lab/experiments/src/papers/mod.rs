// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `papers`: the figures and tables of the four documents, ours beside theirs.
//!
//! # Theory
//!
//! An [`Experiment`] is one figure or table. It *runs* to data, *judges* the data, and *shows*
//! them. Judging is a function of the data alone, with its thresholds stated beside it, so that
//! tests can give it data that reproduce the claim and data that do not; no verdict is written
//! down. [`exhibits`] is the registry; a module a document adds its own.
//!
//! A verdict is on the claim as [`About::claim`] words it: *reproduced*, *weak* (part of it, or
//! less clearly), or *not*. Numbers of the documents appear only where our copy of the text has
//! them.
//!
//! Where a document states several results, each is a [`Statement`] with the rule of its verdict,
//! judged on each kernel apart, and the exhibit's verdict follows from theirs.
//!
//! Every column of numbers and every drawing says where it comes from: counted, measured, simulated
//! or assumed ([`Tag`](ioatlas_present::Tag)).

mod arguments;
mod atc15;
mod bounce21;
mod experiment;
mod output;
mod page;
mod random;
mod replays;
mod wiosca10;

use experiment::{About, Experiment, Found, Judgement, Made, Runs, Shown, Statement, Verdict};

pub(crate) use arguments::PapersArguments;

use crate::Answer;
use crate::error::Error;
use crate::progress::{Bar, Progress};
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
    let mut papers = Papers {
        exhibits: made,
        version: env!("CARGO_PKG_VERSION"),
        commit: ioatlas::COMMIT,
        files: Vec::new(),
    };
    papers.files = directory.write(&papers, command)?;
    Ok(papers)
}

fn plain(papers: &Papers, arguments: &PapersArguments) -> String {
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
    text
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
}
