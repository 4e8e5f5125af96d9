// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which rows are measured, in which groups, with how much effort.
//!
//! # Theory
//!
//! First come the *key groups*: rows that are compared with each other, with a peer or with a limit
//! stand in one group and get many slices. Then the *matrix*: every allocator under every policy,
//! alone and with all policies, the table alone, and the peers, under every pattern, with few
//! slices each; a row that a key group has is not in the matrix again. Large patterns of two
//! threads are left out: what two threads do to each other shows with few outstanding.
//!
//! The whole has a *budget* ([`crate::budget`]): of work, so that a machine on which no slice is
//! clean does not make it endless; and of time, for slow and busy ones.

use crate::{
    Effort, Kind, Pattern, Row, Sizes, Spec, What,
    budget::{self, Budget, Weight},
    measure_within,
    peers::{Peer, Rival, peers},
};
use ioatlas_dma::{
    design::{self, Design},
    domain::{AllocatorConfig, DomainConfig, PolicyConfig},
};
use std::time::{Duration, Instant};

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// The key groups, and of the matrix the ring of 256 single pages.
    Quick,
    /// Every group, within a budget of four minutes.
    Full,
}

impl Extent {
    /// Time for everything, about.
    fn budget(self) -> Duration {
        match self {
            Extent::Quick => Duration::from_secs(22),
            Extent::Full => Duration::from_secs(240),
        }
    }
    /// For rows that are compared.
    fn key(self) -> Effort {
        match self {
            Extent::Quick => Effort {
                slices: 15,
                patience: Duration::from_secs(2),
                filling: Duration::from_secs(1),
            },
            Extent::Full => Effort {
                slices: 61,
                patience: Duration::from_secs(10),
                filling: Duration::from_secs(5),
            },
        }
    }
    /// For the rows of the matrix, which are many.
    fn matrix(self) -> Effort {
        Effort {
            slices: 7,
            patience: Duration::from_secs(2),
            // with more, one that fills slowly would take the time of those beside it
            filling: Duration::from_secs(1),
        }
    }
}

/// Whether a part of a design is chosen, or that there is none.
pub type Choice<C> = Option<C>;

/// Which rows are wanted. An empty list is all.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)] // its fields say it
pub struct Filter {
    /// Allocators; `None` among them is the table alone.
    pub allocators: Vec<Choice<AllocatorConfig>>,
    /// Policies; `None` among them is allocators and tables alone.
    pub policies: Vec<Choice<PolicyConfig>>,
    pub patterns: Vec<Pattern>,
    pub sizes: Vec<Sizes>,
    pub threads: Vec<usize>,
    pub peers: Vec<Choice<Peer>>,
}

fn permits<T: PartialEq>(list: &[T], item: &T) -> bool {
    list.is_empty() || list.contains(item)
}

impl Filter {
    /// Whether a row is wanted.
    pub fn permits(&self, spec: &Spec) -> bool {
        let of_ours = |allocator: Choice<AllocatorConfig>, policy: Choice<PolicyConfig>| {
            permits(&self.allocators, &allocator) && permits(&self.policies, &policy)
        };
        let of_design = |design: Design| {
            let DomainConfig {
                allocator, policy, ..
            } = design.domain;
            of_ours(Some(allocator), Some(policy))
        };
        let what = match spec.what {
            What::Ours(Kind::Domain(design)) | What::Software(design) | What::Late(design) => {
                of_design(design)
            }
            What::Ours(Kind::Allocator(allocator)) => of_ours(Some(allocator), None),
            What::Ours(Kind::Table) => of_ours(None, None),
            What::Ours(
                Kind::Bounce(_)
                | Kind::Slice(_)
                | Kind::Virtio(_)
                | Kind::DmaApi(_)
                | Kind::Raw
                | Kind::Control
                | Kind::Nothing,
            )
            | What::Invalidation => true,
            What::Peer(peer) => permits(&self.peers, &Some(peer)),
        };
        what && permits(&self.patterns, &spec.pattern)
            && permits(&self.sizes, &spec.sizes)
            && permits(&self.threads, &spec.threads)
    }
}

/// Rows that are measured together.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Group {
    pub rows: Vec<Spec>,
    pub effort: Effort,
    /// Which part of the time.
    pub weight: Weight,
}

/// Weight of a group that is compared, with as many more slices.
const KEY: u32 = 8;

impl Group {
    fn new(rows: Vec<Spec>, effort: Effort, many: u32) -> Self {
        // what is outstanding has to be filled first, and replaced before each slice
        let outstanding = rows.iter().map(|row| row.pattern.outstanding()).max();
        let filling = match outstanding {
            Some(100_000..) => 4,
            Some(10_000..) => 2,
            _ => 1,
        };
        let weight = Weight(many * filling);
        Group {
            rows,
            effort,
            weight,
        }
    }
}

/// Linux's design of today, of which most of the summary speaks.
pub fn deferred() -> Design {
    let magazine = AllocatorConfig::Magazine(Default::default());
    DomainConfig::new(magazine, PolicyConfig::DeferredPerCpu(Default::default())).into()
}

/// The same without a window.
pub fn strict() -> Design {
    let magazine = AllocatorConfig::Magazine(Default::default());
    DomainConfig::new(magazine, PolicyConfig::Strict).into()
}

/// The allocator of both, alone.
pub fn magazine() -> What {
    What::Ours(Kind::Allocator(deferred().domain.allocator))
}

/// All groups of an extent that a filter leaves rows of, in the order in which they are measured.
pub fn plan(extent: Extent, filter: &Filter) -> Vec<Group> {
    let key: Vec<Vec<Spec>> = key_rows();
    let in_key = |spec: &Spec| key.iter().flatten().any(|row| row == spec);
    let mut matrix = matrix_rows(extent);
    for group in &mut matrix {
        group.retain(|spec| !in_key(spec));
    }
    // one thread first: on a busy machine two may never count, and use up what is left
    matrix.sort_by_key(|rows| rows.iter().map(|row| row.threads).max());
    let group = |mut rows: Vec<Spec>, effort, many| {
        rows.retain(|spec| filter.permits(spec));
        (!rows.is_empty()).then(|| Group::new(rows, effort, many))
    };
    let compared = key.iter().cloned();
    let compared = compared.map(|rows| group(rows, extent.key(), KEY));
    let others = matrix.into_iter();
    let others = others.map(|rows| group(rows, extent.matrix(), 1));
    compared.chain(others).flatten().collect()
}

fn spec(what: What, pattern: Pattern, sizes: Sizes, threads: usize) -> Spec {
    Spec {
        what,
        pattern,
        sizes,
        threads,
    }
}

fn key_rows() -> Vec<Vec<Spec>> {
    use Pattern::*;
    let whole = What::Ours(Kind::Domain(deferred()));
    let table = What::Ours(Kind::Table);
    let rbtree = What::Ours(Kind::Allocator(AllocatorConfig::RBTREE));
    let mut groups = Vec::new();
    for sizes in Sizes::ALL {
        let mut rings = vec![
            spec(whole, Ring(256), sizes, 1),
            spec(whole, Ring(256), sizes, 2),
            spec(magazine(), Ring(256), sizes, 1),
            spec(magazine(), Ring(256), sizes, 2),
            spec(table, Ring(256), sizes, 1),
        ];
        let rivals = peers().into_iter().map(What::Peer);
        rings.extend(rivals.map(|peer| spec(peer, Ring(256), sizes, 1)));
        groups.push(rings);
    }
    groups.push(vec![
        spec(whole, ProducerConsumer, Sizes::One, 2),
        spec(magazine(), ProducerConsumer, Sizes::One, 2),
    ]);
    groups.push(
        [1_000, 10_000, 100_000]
            .into_iter()
            .flat_map(|n| [magazine(), rbtree].map(|what| spec(what, Replace(n), Sizes::Mixed, 1)))
            .collect(),
    );
    let software = What::Software(strict());
    groups.push(vec![spec(software, Ring(256), Sizes::One, 1)]);
    groups
}

/// How a pattern is measured: with how many threads.
fn threads_of(pattern: Pattern) -> &'static [usize] {
    match pattern {
        Pattern::ProducerConsumer => &[2],
        Pattern::Replace(n) if n > 1_000 => &[1],
        _ => &[1, 2],
    }
}

fn matrix_rows(extent: Extent) -> Vec<Vec<Spec>> {
    let mut groups = Vec::new();
    for pattern in Pattern::ALL {
        for sizes in Sizes::ALL {
            let quick = (pattern, sizes) == (Pattern::Ring(256), Sizes::One);
            if extent == Extent::Quick && !quick {
                continue;
            }
            for &threads in threads_of(pattern) {
                let row = |what| spec(what, pattern, sizes, threads);
                for allocator in design::allocators() {
                    let alone = What::Ours(Kind::Allocator(allocator.config));
                    let under = design::policies().map(|policy| {
                        let domain = DomainConfig::new(allocator.config, policy.config);
                        What::Ours(Kind::Domain(domain.into()))
                    });
                    groups.push([alone].into_iter().chain(under).map(row).collect());
                }
                let rivals = peers().into_iter();
                let rivals = rivals.filter(|peer| threads == 1 || peer.rival == Rival::Allocator);
                // a thread's places in a table are its own, and what another gives back would be
                // lost to it
                let table =
                    (pattern != Pattern::ProducerConsumer).then_some(What::Ours(Kind::Table));
                groups.push(
                    table
                        .into_iter()
                        .chain(rivals.map(What::Peer))
                        .map(row)
                        .collect(),
                );
            }
        }
    }
    groups
}

/// Measures `groups` one after the other. `at` is told what comes next, and how
/// many groups lie behind.
pub fn run(extent: Extent, groups: &[Group], at: impl FnMut(&Spec, usize)) -> Vec<Row> {
    let begun = Instant::now();
    let measured = |group: &Group, spent, time| {
        let limit = budget::limit(group.effort, begun + spent, time);
        measure_within(&group.rows, group.effort, limit)
    };
    run_by(extent.budget(), groups, || begun.elapsed(), measured, at)
}

/// The same by a clock that says how much time is spent. `measured` gets a group, that, and how
/// much time the group may take.
fn run_by(
    total: Duration,
    groups: &[Group],
    spent: impl Fn() -> Duration,
    mut measured: impl FnMut(&Group, Duration, Duration) -> Vec<Row>,
    mut at: impl FnMut(&Spec, usize),
) -> Vec<Row> {
    let mut budget = Budget::new(total, groups.iter().map(|group| group.weight));
    let mut rows = Vec::new();
    for (nth, group) in groups.iter().enumerate() {
        if let Some(first) = group.rows.first() {
            at(first, nth);
        }
        let spent = spent();
        match budget.next(group.weight, spent) {
            Some(time) => rows.extend(measured(group, spent, time)),
            None => rows.extend(group.rows.iter().copied().map(Row::late)),
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Unmeasured, rows::contestants};
    use std::cell::Cell;

    #[test]
    fn every_row_is_planned_once() {
        for extent in [Extent::Quick, Extent::Full] {
            let groups = plan(extent, &Filter::default());
            let mut names: Vec<String> = Vec::new();
            for row in groups.iter().flat_map(|group| &group.rows) {
                names.push(row.to_string());
            }
            names.sort();
            let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
            assert_eq!(twice, None, "{extent:?}");
        }
    }

    #[test]
    fn the_full_plan_has_every_design_under_every_pattern() {
        let groups = plan(Extent::Full, &Filter::default());
        let rows: Vec<&Spec> = groups.iter().flat_map(|group| &group.rows).collect();
        for design in design::all() {
            for pattern in Pattern::ALL {
                for sizes in Sizes::ALL {
                    for &threads in threads_of(pattern) {
                        let what = What::Ours(Kind::Domain(design));
                        let wanted = spec(what, pattern, sizes, threads);
                        assert!(rows.contains(&&wanted), "{wanted}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_full_run_is_of_bounded_work() {
        let groups = plan(Extent::Full, &Filter::default());
        let most = |group: &Group| {
            let contestants = contestants(&group.rows).len();
            budget::slices_at_most(contestants, group.effort)
        };
        // of a millisecond each, with a little warm-up: 2 minutes where not one is clean
        let slices: usize = groups.iter().map(most).sum();
        assert!(slices <= 100_000, "{slices} slices");
    }

    #[test]
    fn rows_that_there_is_no_time_for_say_so() {
        let groups = plan(Extent::Full, &Filter::default());
        let (total, each) = (Duration::from_secs(100), Duration::from_secs(10));
        let (clock, measured) = (Cell::new(Duration::ZERO), Cell::new(0));
        // every group takes ten seconds, whatever it may take
        let slow = |group: &Group, spent: Duration, time: Duration| {
            assert!(spent + time <= total, "{spent:?} + {time:?}");
            clock.set(clock.get() + each);
            measured.set(measured.get() + 1);
            let row = |spec: &Spec| Row {
                figure: Err(Unmeasured::Failed("measured".into())),
                ..Row::late(*spec)
            };
            group.rows.iter().map(row).collect()
        };
        let rows = run_by(total, &groups, || clock.get(), slow, |_, _| ());
        assert_eq!(measured.get(), 10);
        let wanted: Vec<Spec> = groups.iter().flat_map(|group| group.rows.clone()).collect();
        let given: Vec<Spec> = rows.iter().map(|row| row.spec).collect();
        assert_eq!(given, wanted, "no row is left out");
        let in_time: usize = groups[..10].iter().map(|group| group.rows.len()).sum();
        for (nth, row) in rows.iter().enumerate() {
            let late = row.figure == Err(Unmeasured::Late { slices: 0 });
            assert_eq!(late, nth >= in_time, "{}", row.spec);
        }
    }

    #[test]
    fn filters_leave_what_they_name() {
        let named = |filter: &Filter| -> Vec<Spec> {
            let groups = plan(Extent::Full, filter);
            groups.into_iter().flat_map(|group| group.rows).collect()
        };
        let all = named(&Filter::default()).len();
        let strict_only = named(&Filter {
            policies: vec![Some(PolicyConfig::Strict)],
            peers: vec![None],
            ..Filter::default()
        });
        assert!(!strict_only.is_empty() && strict_only.len() < all);
        for row in &strict_only {
            assert!(row.what.to_string().ends_with("+strict"), "{row}");
        }
        let table = named(&Filter {
            allocators: vec![None],
            peers: vec![None],
            threads: vec![1],
            ..Filter::default()
        });
        assert!(!table.is_empty());
        for row in &table {
            assert_eq!(row.what, What::Ours(Kind::Table), "{row}");
        }
        let nothing = Filter {
            patterns: vec![Pattern::ProducerConsumer],
            threads: vec![1],
            ..Filter::default()
        };
        assert_eq!(named(&nothing), []);
    }
}
