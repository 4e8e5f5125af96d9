// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What `papers` takes.

use clap::Args;
use std::path::PathBuf;

/// Make the figures and tables of the papers, ours beside theirs, each with what
/// of its statements is reproduced.
///
/// Writes one CSV file an exhibit, its drawings as SVG and as CSV, and index.html, one page that
/// needs none of the others. Each file is replaced whole, the page last. Here so far: tables 1 and
/// 2 and figures 1 to 7 of ATC'15 (Peleg et al., Utilizing the IOMMU Scalably), the results of
/// BOUNCE'21 (Stevens, Add dynamic iommu backed bounce buffers) with two plots that it lacks,
/// measured here, and WIOSCA'10 (Amit et al., Strategies for Mitigating the IOTLB Bottleneck), with
/// what it states of results one by one, each judged on two kernels.
///
/// A verdict on a statement (reproduced, weak, not) is computed from our data; what was fitted to
/// a statement, or holds by what went in, has none. One that is not "reproduced" is a result, not a
/// failure.
///
/// JSON: exhibits[] (paper, exhibit, title, claim, counts (reproduced, weak, not, fitted, input: how
/// many findings), places[] (on: a kernel or model, and its counts), statements[] (says, theirs,
/// rule, found[] (on, kind: predicted, fitted or input, verdict, null of what is no evidence,
/// reason, compared[] (of, ours, theirs (low, high), ratio: ours over theirs, 1 within a range))),
/// columns[], tags[] (of each column, where its numbers come from; null for words), rows[][],
/// notes[]), counts of all, parameters[] (model, name, value, unit, origin: published, measured,
/// fitted or free, source), version, commit, files[].
#[derive(Args, Debug)]
pub(crate) struct PapersArguments {
    /// Directory to write into; made if there is none.
    #[arg(short, long, value_name = "DIR", default_value = "papers")]
    pub output: PathBuf,
    /// Only exhibits whose files' names begin so, as in atc15,bounce21-crossover: less of the time,
    /// and a page of these.
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = super::beginning)]
    pub only: Vec<String>,
    /// Print JSON instead of the counts.
    #[arg(long)]
    pub json: bool,
}
