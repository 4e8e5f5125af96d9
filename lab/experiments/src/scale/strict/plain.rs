// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What people read: the statements first, then a table for each load and number of CPUs.

use super::{Point, Said, Strict};
use ioatlas_present::Table;

pub(super) fn plain(strict: &Strict) -> String {
    let mut text = String::new();
    if !strict.statements.is_empty() {
        text += "Stated before: p = w; as parts of no IOMMU\n";
        text += &statements(&strict.statements);
        text.push('\n');
    }
    let mut at = 0;
    while let Some(first) = strict.points.get(at) {
        let same = |point: &&Point| (point.work, point.cpus) == (first.work, first.cpus);
        let count = strict.points[at..].iter().take_while(same).count();
        let group = &strict.points[at..][..count];
        at += count;
        text += &format!(
            "{} cycles of work a transaction, {} CPUs: parts of no IOMMU's {:.0} a second\n",
            first.work, first.cpus, first.per_second
        );
        text += &of_group(group);
        text.push('\n');
        text += "What devices pay for an access, p = w: IOTLB misses, page-table entries read\n";
        text += &devices(group);
        text.push('\n');
    }
    let judged = || strict.points.iter().filter_map(|point| point.in_range);
    text + &format!(
        "{} of {} points are as expected; ! is one that is not, with what was.\n",
        judged().filter(|within| *within).count(),
        judged().count()
    )
}

fn statements(all: &[Said]) -> String {
    let heads = ["line", "CPUs", "g", "work", "stated", "range", "ours", ""];
    let mut table = Table::new(heads).aligned("lrrrrrrl");
    for said in all {
        let out = if said.in_range { "" } else { "out of it" };
        table.row([
            said.line.into(),
            said.cpus.to_string(),
            times_page(said.domain_cost),
            said.work.to_string(),
            said.stated.to_string(),
            format!("{} to {}", said.low, said.high),
            format!("{:.3}", said.ours),
            out.into(),
        ]);
    }
    table.text("")
}

/// A row for each line and p, a column for each g.
fn of_group(group: &[Point]) -> String {
    let mut costs: Vec<u64> = group.iter().filter_map(|point| point.domain_cost).collect();
    costs.sort_unstable();
    costs.dedup();
    let heads = ["line".to_owned(), "p/(p+w)".to_owned()].into_iter();
    let heads: Vec<String> = heads
        .chain(
            costs
                .iter()
                .map(|cost| format!("g = {}", times_page(*cost))),
        )
        .collect();
    let mut table = Table::of(heads, Vec::new()).aligned("lr");
    let mut rest = group.iter().filter(|point| point.page_share.is_some());
    let mut next = rest.next();
    while let Some(first) = next {
        let mut cells = vec![first.line.to_owned(), share(first)];
        let mut row = vec![first];
        next = rest.next();
        while let Some(point) = next
            && (point.line, point.page_share) == (first.line, first.page_share)
        {
            row.push(point);
            next = rest.next();
        }
        for cost in &costs {
            let of = |point: &&&Point| point.domain_cost.is_none_or(|of| of == *cost);
            cells.push(
                row.iter()
                    .find(of)
                    .map_or(String::new(), |point| cell(point)),
            );
        }
        table.row(cells);
    }
    table.text("")
}

/// A row for each line, and g where it is of consequence.
fn devices(group: &[Point]) -> String {
    let heads = [
        "line",
        "g by p",
        "misses of 32",
        "reads",
        "misses of 4096",
        "reads",
    ];
    let mut table = Table::new(heads).aligned("lrrrrr");
    let same = group.iter().filter(|point| point.page_share == Some(0.5));
    for (point, devices) in same.filter_map(|point| Some((point, point.devices?))) {
        let cost = point
            .domain_cost
            .map_or(String::new(), |cost| cost.to_string());
        let mut cells = vec![point.line.to_owned(), cost];
        for misses in [devices.small, devices.large] {
            cells.extend([misses.misses, misses.reads].map(|number| format!("{number:.3}")));
        }
        table.row(cells);
    }
    table.text("")
}

fn times_page(cost: u64) -> String {
    match cost {
        1 => "p".to_owned(),
        cost => format!("{cost} p"),
    }
}

fn share(point: &Point) -> String {
    point
        .page_share
        .map_or(String::new(), |share| share.to_string())
}

fn cell(point: &Point) -> String {
    match (point.in_range, point.low, point.high) {
        (Some(false), Some(low), Some(high)) => {
            format!("!{:.3} ({low:.2}-{high:.2})", point.relative)
        }
        _ => format!("{:.3}", point.relative),
    }
}
