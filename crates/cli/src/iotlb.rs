// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas iotlb`: strategies on traces.

use crate::Answer;
use crate::args::IotlbArguments;
use crate::info::{ByName, per_trace};
use crate::text::{Align, grouped, printable, table};
use ioatlas_iotlb::{Outcome, simulate};

pub(crate) fn run(arguments: &IotlbArguments) -> Answer {
    let geometry = match arguments.geometry.geometry() {
        Ok(geometry) => geometry,
        Err(error) => {
            return Answer {
                errors: vec![error.into()],
                ..Answer::default()
            };
        }
    };
    let (results, mut errors) = per_trace(&arguments.traces, |trace| {
        arguments
            .strategy
            .iter()
            .map(|&s| simulate(trace, s, geometry))
            .collect::<Vec<Outcome>>()
    });
    let text = if arguments.json {
        ByName::new(&results, arguments.traces.len()).json(&mut errors)
    } else {
        plain(&results)
    };
    Answer { text, errors }
}

fn plain(results: &[(String, Vec<Outcome>)]) -> String {
    if results.is_empty() {
        return String::new();
    }
    let heading = [
        "trace",
        "strategy",
        "accesses",
        "hits",
        "prefetch hits",
        "misses",
        "faults",
        "miss rate",
        "evictions",
        "invalidations",
    ];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for (name, outcomes) in results {
        for outcome in outcomes {
            rows.push(vec![
                printable(name, 60),
                outcome.strategy.clone(),
                grouped(outcome.accesses),
                grouped(outcome.hits),
                grouped(outcome.prefetch_hits),
                grouped(outcome.misses),
                grouped(outcome.faults),
                format!("{:.4}", outcome.miss_rate),
                grouped(outcome.evictions),
                grouped(outcome.invalidations),
            ]);
        }
    }
    let mut align = [Align::Right; 10];
    align[..2].fill(Align::Left);
    let mut text = table(&align, 2, &rows).join("\n");
    text.push('\n');
    for (name, outcomes) in results {
        let anomalies = outcomes
            .first()
            .map(|outcome| outcome.anomalies)
            .unwrap_or_default();
        if !anomalies.is_empty() {
            text.push_str(&format!(
                "{}: anomalies: {} pages mapped over, {} pages unmapped twice, {} faults\n",
                printable(name, 60),
                grouped(anomalies.map_over_mapped_pages.0),
                grouped(anomalies.unmap_not_mapped_pages.0),
                grouped(anomalies.faults)
            ));
        }
    }
    text
}
