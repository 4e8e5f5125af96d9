// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Rows as JSON.

use ioatlas_bench::{Kind, Pattern, Row, What, probe::Mode};
use ioatlas_dma::design::Design;
use serde::Serialize;

/// A row. `BenchArguments` documents the fields.
#[derive(Debug, Serialize)]
struct Object {
    kind: &'static str,
    allocator: Option<&'static str>,
    policy: Option<&'static str>,
    peer: Option<&'static str>,
    pattern: &'static str,
    sizes: &'static str,
    threads: usize,
    outstanding: usize,
    ns_per_pair: Option<f64>,
    ns_p10: Option<f64>,
    ns_p90: Option<f64>,
    control_ns: Option<f64>,
    control_ratio: Option<f64>,
    mode: Option<&'static str>,
    slices: usize,
    handoff_ns: Option<f64>,
    wait_ns: Option<f64>,
    excess_ns: Option<f64>,
    reason: Option<String>,
}

/// How a row is told from others: its kind, its allocator, its policy and its peer.
pub(super) struct Names {
    pub kind: &'static str,
    pub allocator: Option<&'static str>,
    pub policy: Option<&'static str>,
    pub peer: Option<&'static str>,
}

impl Names {
    pub fn of(what: &What) -> Self {
        let none = Some("none");
        let names = |kind, allocator, policy| Names {
            kind,
            allocator,
            policy,
            peer: None,
        };
        let design = |kind, design: &Design| {
            let (allocator, policy) = (design.domain.allocator, design.domain.policy);
            names(kind, Some(allocator.name()), Some(policy.name()))
        };
        match what {
            What::Ours(Kind::Domain(d)) => design("domain", d),
            What::Software(d) => design("software", d),
            What::Late(d) => design("late", d),
            What::Ours(Kind::Allocator(a)) => names("allocator", Some(a.name()), none),
            What::Ours(Kind::Table) => names("table", none, none),
            What::Ours(Kind::Bounce(_)) => names("bounce", none, none),
            What::Ours(Kind::Slice(_)) => names("slice", none, none),
            What::Ours(Kind::Virtio(_)) => names("virtio", none, none),
            What::Ours(Kind::DmaApi(_)) => names("dma-api", none, none),
            What::Ours(Kind::Control) => names("control", none, none),
            What::Ours(Kind::Raw) => names("raw", none, none),
            What::Ours(Kind::Nothing) => names("nothing", none, none),
            What::Invalidation => names("invalidation", none, none),
            What::Peer(peer) => Names {
                peer: Some(peer.name),
                ..names("peer", None, None)
            },
        }
    }
}

impl Object {
    fn of(row: &Row) -> Self {
        let spec = &row.spec;
        let Names {
            kind,
            allocator,
            policy,
            peer,
        } = Names::of(&spec.what);
        let figure = row.figure.as_ref().ok();
        let ns = figure.map(|figure| figure.ns);
        let beside = row.beside.as_ref().map(|figure| figure.ns.median);
        let handoff = spec.pattern == Pattern::ProducerConsumer;
        Object {
            kind,
            allocator,
            policy,
            peer,
            pattern: spec.pattern.name(),
            sizes: spec.sizes.name(),
            threads: spec.threads,
            outstanding: spec.pattern.outstanding(),
            ns_per_pair: ns.map(|ns| ns.median),
            ns_p10: ns.map(|ns| ns.low),
            ns_p90: ns.map(|ns| ns.high),
            control_ns: row.control.as_ref().map(|figure| figure.ns.median),
            control_ratio: row.control_ratio.map(|ratio| ratio.median),
            mode: figure
                .and_then(|figure| figure.mode)
                .map(|mode: Mode| mode.name()),
            slices: figure.map_or(0, |figure| figure.slices.len()),
            handoff_ns: beside.filter(|_| handoff),
            wait_ns: beside.filter(|_| !handoff),
            excess_ns: row.excess.map(|excess| excess.median),
            reason: row.figure.as_ref().err().map(ToString::to_string),
        }
    }
}

pub(super) fn objects(rows: &[Row]) -> impl Serialize {
    rows.iter().map(Object::of).collect::<Vec<_>>()
}
