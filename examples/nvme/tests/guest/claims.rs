// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What must be so.

use crate::{
    machine::{EDU_SOURCE, Run, Unit},
    trace::{Event, count},
};
use ioatlas_nvme::{
    cost::median,
    policy::{BURST, Policy},
};
use libtest_mimic::Failed;
use serde::Deserialize;
use serde_json::{Value, value::Index};

type Claim = Result<(), Failed>;

/// Reports, in their order.
const HUGE: usize = 0;
const SCATTERED: usize = 1;
/// Of bursts, under either policy of the domain.
const STRICT: usize = 2;
const DEFERRED: usize = 3;
const LAYOUTS: [&str; 4] = [
    "contiguous",
    "scattered",
    "strict, contiguous",
    "deferred-percpu, contiguous",
];
/// In the first two.
const MEASURED: [&str; 3] = ["map-unmap", "always", "adaptive"];
/// `edu` moves 2048 bytes, which QEMU asks the unit for 4 at a time.
const FAULTS_A_TRANSFER: u64 = 512;
/// The round trip ends with one of 1024 bytes that must be blocked.
const FAULTS_A_ROUND_TRIP: u64 = 256;

/// How many faults are right where so many accesses were blocked: virtio-iommu tells as long as its
/// guest has room for it, a VT-d unit always.
fn faults_of(unit: Unit, accesses: u64) -> std::ops::RangeInclusive<u64> {
    match unit {
        Unit::Vtd => accesses..=accesses,
        Unit::Virtio => accesses.min(1)..=accesses,
    }
}

/// One line of a report's costs.
pub struct Cost<'r> {
    policy: &'r str,
    kib: u64,
    depth: u64,
    reads: u64,
    cpu: u64,
    wall: u64,
    calls: u64,
    events: &'r [Event],
}

impl Cost<'_> {
    fn invalidations(&self) -> u64 {
        count(self.events, |event| *event == Event::Invalidation)
    }
}

fn number(value: &Value, field: impl Index) -> u64 {
    value[field].as_u64().unwrap_or(u64::MAX)
}

fn list<'r>(run: &'r Run, layout: usize, field: &str) -> &'r [Value] {
    let report = run.reports.get(layout);
    let list = report.and_then(|report| report[field].as_array());
    list.map_or(&[], Vec::as_slice)
}

fn notes(value: &Value, field: &str) -> [u32; 2] {
    [0, 1].map(|n| value[field][n].as_u64().unwrap_or(0) as u32)
}

fn costs(run: &Run, layout: usize) -> Vec<Cost<'_>> {
    let rounds = |of: &Value| Vec::deserialize(of).unwrap_or_default();
    let all = list(run, layout, "costs").iter().map(|cost| Cost {
        policy: cost["policy"].as_str().unwrap_or(""),
        kib: number(cost, "bytes") >> 10,
        depth: number(cost, "depth"),
        reads: number(cost, "reads") * cost["cpu_ns"].as_array().map_or(0, Vec::len) as u64,
        cpu: median(&rounds(&cost["cpu_ns"])),
        wall: median(&rounds(&cost["wall_ns"])),
        calls: number(cost, "calls"),
        events: run.trace.between(layout, notes(cost, "notes")),
    });
    all.collect()
}

/// That none of `policies` was measured, where that is so: a claim about no costs says nothing.
fn unmeasured(costs: &[Cost<'_>], layout: usize, policies: &[&str]) -> Vec<String> {
    let is_there = |policy: &str| costs.iter().any(|cost| cost.policy == policy);
    let missing = policies.iter().filter(|policy| !is_there(policy));
    let name = LAYOUTS[layout];
    missing
        .map(|policy| format!("{name}: {policy} was not measured"))
        .collect()
}

/// All wrongs at once.
fn none(wrongs: Vec<String>) -> Claim {
    match wrongs.is_empty() {
        true => Ok(()),
        false => Err(wrongs.join("\n").into()),
    }
}

pub fn verified(run: &Run) -> Claim {
    let mut wrongs = Vec::new();
    let (seen, want) = (run.reports.len(), LAYOUTS.len());
    if seen != want {
        wrongs.push(format!("{seen} reports, want {want}"));
    }
    for (report, layout) in run.reports.iter().zip(LAYOUTS) {
        for failure in report["failures"].as_array().into_iter().flatten() {
            wrongs.push(format!("{layout}: {failure}"));
        }
        if report["interrupts_wrong_bytes"] != 0 {
            wrongs.push(format!("{layout}: no reads told of by interrupts"));
        }
    }
    for policy in Policy::ALL {
        let verified = list(run, HUGE, "verified").iter();
        let reads = verified
            .filter(|v| v["policy"] == policy.name())
            .map(|v| number(v, "reads"));
        if reads.sum::<u64>() < 96 {
            wrongs.push(format!("{policy}: not verified"));
        }
    }
    none(wrongs)
}

pub fn spaces(run: &Run) -> Claim {
    let mut wrongs = Vec::new();
    let layouts = ["huge", "scattered", "huge", "huge"];
    let policies = ["strict", "strict", "strict", "deferred-percpu"];
    for ((report, layout), policy) in run.reports.iter().zip(layouts).zip(policies) {
        let space = &report["space"];
        let iovas = space["iovas"].as_array().map_or(&[][..], Vec::as_slice);
        let last = iovas.last().map_or(0, |range| number(range, 1));
        let sizes = space["page_bytes"].as_array().into_iter().flatten();
        let right = space["kind"] == "type1"
            && space["granule_bytes"] == 4096
            && sizes.filter_map(Value::as_u64).any(|size| size == 4096)
            && number(space, "mappings") > 0
            // around the interrupt window, and up to some power of two
            && iovas.len() > 1
            && last.wrapping_add(1).is_power_of_two()
            && report["layout"] == layout
            && report["domain_policy"] == policy;
        if !right {
            let (layout, seen) = (&report["layout"], &report["domain_policy"]);
            wrongs.push(format!("{policy}: {space}, {layout}, {seen}"));
        }
    }
    let refused = &run.refused;
    if !["--space iommufd", "CONFIG_VFIO_DEVICE_CDEV"]
        .iter()
        .all(|word| refused.contains(word))
    {
        wrongs.push(format!("iommufd is refused by `{refused}`"));
    }
    none(wrongs)
}

pub fn blocked(run: &Run) -> Claim {
    let report = run.reports.first().ok_or("no report")?;
    let events = run.trace.between(HUGE, notes(report, "revoked_notes"));
    let revoked = list(run, HUGE, "revoked");
    let of = |page: u64| {
        move |event: &Event| {
            *event
                == Event::Fault {
                    source: EDU_SOURCE,
                    page,
                }
        }
    };
    let is_fault = |event: &Event| matches!(event, Event::Fault { .. });
    let mut wrongs = Vec::new();
    let must: Vec<u64> = revoked
        .iter()
        .filter(|r| r["blocked"] == true)
        .map(|r| number(r, "iova") >> 12)
        .collect();
    for page in &must {
        let transfers = must.iter().filter(|other| *other == page).count() as u64;
        let want = faults_of(run.unit, transfers * FAULTS_A_TRANSFER);
        let seen = count(events, of(*page));
        if !want.contains(&seen) {
            wrongs.push(format!("IOVA page {page:#x}: {seen} faults, want {want:?}"));
        }
    }
    let known = |event: &Event| must.iter().any(|page| of(*page)(event));
    let strange = count(events, is_fault) - count(events, known);
    let outside = count(&run.trace.0, is_fault) - count(events, is_fault);
    let want = faults_of(run.unit, FAULTS_A_ROUND_TRIP);
    if strange != 0 || !want.contains(&outside) || must.len() < 6 {
        wrongs.push(format!(
            "{strange} faults of others; {outside} outside of them, want {want:?}; {} transfers",
            must.len()
        ));
    }
    if report["round_trip"]["stray_bytes"] != 0 {
        wrongs.push(format!("no round trip: {}", report["round_trip"]));
    }
    none(wrongs)
}

pub fn late(run: &Run) -> Claim {
    let report = run.reports.first().ok_or("no report")?;
    match &report["late"][0] {
        Value::Number(_) => Ok(()), // how many landed is shown, and no verdict
        other => Err(format!("{other}").into()),
    }
}

pub fn reads(run: &Run) -> Claim {
    let mut wrongs = Vec::new();
    for layout in [HUGE, SCATTERED] {
        let costs = costs(run, layout);
        wrongs.extend(unmeasured(&costs, layout, &MEASURED));
        for cost in costs {
            let seen = count(cost.events, |event| *event == Event::Read);
            if seen != cost.reads || seen == 0 {
                let Cost {
                    policy,
                    kib,
                    depth,
                    reads,
                    ..
                } = cost;
                wrongs.push(format!(
                    "{policy} {kib}k at {depth}: {reads} reads, QEMU saw {seen}"
                ));
            }
        }
    }
    none(wrongs)
}

pub fn bounced(run: &Run) -> Claim {
    let mut wrongs = Vec::new();
    for layout in [HUGE, SCATTERED] {
        let costs = costs(run, layout);
        wrongs.extend(unmeasured(&costs, layout, &MEASURED));
        for cost in costs {
            let bounces = cost.policy == "always" || cost.policy == "below-16k" && cost.kib <= 16;
            let seen = cost.invalidations();
            // a map and an unmap, each told to the unit, since it is in caching mode
            let right = match cost.policy {
                _ if bounces => seen == 0,
                "map-unmap" => seen >= 2 * cost.reads,
                _ => true,
            };
            if !right {
                let Cost {
                    policy, kib, reads, ..
                } = cost;
                wrongs.push(format!(
                    "{policy} {kib}k: {seen} invalidations in {reads} reads"
                ));
            }
        }
    }
    none(wrongs)
}

pub fn lists(run: &Run) -> Claim {
    let mut wrongs = Vec::new();
    let lists = list(run, HUGE, "lists");
    if lists.len() < 3 {
        wrongs.push("no lists".into());
    }
    for mapped in lists {
        let events = run.trace.between(HUGE, notes(mapped, "notes"));
        let seen = count(events, |event| *event == Event::Invalidation);
        let (runs, lists) = (number(mapped, "runs"), number(mapped, "lists"));
        // each run is mapped by one call; what is unmapped goes run by run in the kernel
        let want = 2 * runs * lists;
        if seen != want {
            wrongs.push(format!(
                "{runs} runs: {seen} invalidations for {lists} lists, want {want}"
            ));
        }
    }
    none(wrongs)
}

/// Instructions of mapping over those of bouncing, at depth 8.
fn ratio(run: &Run, layout: usize, kib: u64) -> Option<f64> {
    let costs = costs(run, layout);
    let of = |policy: &str| {
        let is_it = |c: &&Cost| (c.policy, c.kib, c.depth) == (policy, kib, 8);
        costs.iter().find(is_it).map(|c| c.cpu as f64)
    };
    Some(of("map-unmap")? / of("always")?)
}

/// At most so many times the instructions of what is deferred: a tenth above what was reached under
/// either unit. The aim is 1.3.
const BURSTS_OVER_DEFERRED: f64 = 1.02;

/// What a read costs one by one, in bursts, and where its invalidation is deferred.
fn burst_costs(run: &Run) -> Option<[Cost<'_>; 3]> {
    let of = |layout, policy: &str| {
        let mut costs = costs(run, layout).into_iter();
        costs.find(|c| (c.policy, c.kib, c.depth) == (policy, 4, BURST as u64))
    };
    Some([
        of(STRICT, "map-unmap")?,
        of(STRICT, "map-unmap-bursts")?,
        of(DEFERRED, "map-unmap")?,
    ])
}

pub fn bursts(run: &Run) -> Claim {
    let [single, bursts, deferred] = burst_costs(run).ok_or("bursts were not measured")?;
    let mut wrongs = Vec::new();
    let reads = bursts.reads;
    for (name, cost, calls) in [
        ("one by one", &single, 2 * reads),
        ("bursts", &bursts, reads + reads / BURST as u64),
    ] {
        let told = cost.invalidations();
        // one call may end many mappings, each of which the kernel tells the unit of
        if cost.calls != calls || told < 2 * reads {
            wrongs.push(format!(
                "{name}: {} calls, want {calls}; {told} invalidations of {reads} reads",
                cost.calls
            ));
        }
    }
    let ratio = bursts.cpu as f64 / deferred.cpu as f64;
    if ratio > BURSTS_OVER_DEFERRED {
        wrongs.push(format!(
            "bursts are {ratio:.2} times deferred, want {BURSTS_OVER_DEFERRED} at most"
        ));
    }
    none(wrongs)
}

/// At least so many times over virtio-iommu, whose calls are dearer: about a tenth below what
/// was reached.
const AT_LEAST_VIRTIO: [(usize, [(u64, f64); 2]); 2] = [
    (HUGE, [(4, 8.5), (64, 1.85)]),
    (SCATTERED, [(4, 8.5), (64, 10.0)]),
];
/// At least so many times: for 4, 16, 64 and 128 KiB. About a tenth below what was reached where
/// that is near the aims, which are 6, 4, 2 and 1.5 for contiguous memory.
const AT_LEAST: [(usize, [(u64, f64); 4]); 2] = [
    (HUGE, [(4, 6.0), (16, 3.7), (64, 1.9), (128, 1.42)]),
    (SCATTERED, [(4, 5.0), (16, 5.0), (64, 4.0), (128, 4.0)]),
];

pub fn ratios(run: &Run) -> Claim {
    let mut wrongs = Vec::new();
    let least = match run.unit {
        Unit::Vtd => AT_LEAST.map(|(layout, sizes)| (layout, sizes.to_vec())),
        Unit::Virtio => AT_LEAST_VIRTIO.map(|(layout, sizes)| (layout, sizes.to_vec())),
    };
    for (layout, sizes) in least {
        for (kib, least) in sizes {
            let seen = ratio(run, layout, kib).unwrap_or(0.0);
            if seen < least {
                let layout = LAYOUTS[layout];
                wrongs.push(format!("{layout} {kib}k: {seen:.2} times, want {least}"));
            }
        }
    }
    none(wrongs)
}

pub fn adaptive(run: &Run) -> Claim {
    let mut wrongs = Vec::new();
    for layout in [HUGE, SCATTERED] {
        let costs = costs(run, layout);
        wrongs.extend(unmeasured(&costs, layout, &MEASURED));
        for cost in costs.iter().filter(|c| c.policy == "adaptive") {
            let others = costs
                .iter()
                .filter(|c| (c.kib, c.depth) == (cost.kib, cost.depth));
            let both = others.filter(|c| ["always", "map-unmap"].contains(&c.policy));
            let best = both.map(|c| c.cpu).min().unwrap_or(0) as f64;
            // What it asks itself takes 180 instructions; it has slots of its own, and how many of
            // their frames adjoin differs.
            if cost.cpu as f64 > (best * 1.15).max(best + 300.0) {
                let over = 100.0 * (cost.cpu as f64 / best - 1.0);
                let layout = LAYOUTS[layout];
                wrongs.push(format!(
                    "{layout} {}k at {}: {over:.1} % over",
                    cost.kib, cost.depth
                ));
            }
        }
    }
    none(wrongs)
}

/// Verdict and tables, for people.
pub fn print(run: &Run) {
    println!(
        "\n{}, {}, kernel {}, {:.0} s from boot to verdict",
        run.qemu,
        run.unit.name(),
        run.kernel,
        run.seconds
    );
    if let Some(report) = run.reports.first() {
        let late = &report["late"];
        println!(
            "{} transfers of edu; of {} reads of QEMU's NVMe that an unmap overtook, {} wrote afterwards (excluded: it translates when a command begins)",
            list(run, HUGE, "revoked").len(),
            late[0],
            late[1]
        );
    }
    for (layout, name) in LAYOUTS.iter().enumerate() {
        let costs = costs(run, layout);
        let runs = &run.reports.get(layout).map_or(&Value::Null, |r| &r["runs"]);
        println!("\n{name} memory: 128 KiB are {runs} physical runs");
        let none = costs.is_empty();
        if none {
            continue;
        }
        println!(
            "read depth policy           instructions  invalidations  kernel calls  of a read; emulated us (no time of hardware's)"
        );
        for cost in &costs {
            println!(
                "{:>3}k {:>5} {:<16} {:>12} {:>14.2} {:>13.2}  {:>10.1}",
                cost.kib,
                cost.depth,
                cost.policy,
                cost.cpu,
                cost.invalidations() as f64 / cost.reads.max(1) as f64,
                cost.calls as f64 / cost.reads.max(1) as f64,
                cost.wall as f64 / 1000.0,
            );
        }
        let ratios = [4, 16, 64, 128].map(|kib| Some((kib, ratio(run, layout, kib)?)));
        for (kib, ratio) in ratios.into_iter().flatten() {
            println!("map-unmap over always at {kib} KiB, depth 8: {ratio:.2} times");
        }
    }
    if let Some(costs) = burst_costs(run) {
        let [single, bursts, deferred] = costs.map(|cost| cost.cpu as f64);
        println!(
            "over deferred-percpu at 4 KiB: strict {:.3} times, in bursts {:.3} times",
            single / deferred,
            bursts / deferred
        );
    }
}
