// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Simulations of a trace in memory: what they give, and how they are asked for.

use crate::cache::{Array, Cache, Indexed, SCANNED_WAYS};
use crate::classify::Survey;
use crate::engine::{Counts, Engine, Observer};
use crate::event::Event;
use crate::info::Anomalies;
use crate::named::{Part, Parts};
use crate::optimal::{NextUses, Optimal};
use crate::plan::{Plans, View, long_groups};
use crate::setup::Setup;
use crate::step::Step;
use crate::strategy::{Ending, Strategy};
use crate::trace::Trace;
use crate::units::EventTime;
use serde::Serialize;
use std::sync::OnceLock;

/// Counts of one simulation. The serialised field names are stable.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Name of the strategy.
    pub strategy: String,
    /// Access events: hits + prefetch hits + misses + faults.
    pub accesses: u64,
    /// Accesses that found their entry in the IOTLB.
    pub hits: u64,
    /// Accesses that found it in the prefetch buffer.
    pub prefetch_hits: u64,
    /// Accesses that had to walk the page table.
    pub misses: u64,
    /// Accesses outside a live mapping.
    pub faults: u64,
    /// Misses / (hits + prefetch hits + misses), a fraction; 0 if there is none.
    pub miss_rate: f64,
    /// Entries inserted into the prefetch buffer.
    pub prefetches: u64,
    /// Prefetched entries that an access used.
    pub useful_prefetches: u64,
    /// Valid entries displaced by a fill.
    pub evictions: u64,
    /// Entries that unmaps removed.
    pub invalidations: u64,
    /// Page-table entries that walks read.
    pub memory_reads: u64,
    /// `memory_reads` / (hits + prefetch hits + misses); 0 if there is none.
    pub reads_per_access: f64,
    /// Page-table entries that prefetches read.
    pub prefetch_reads: u64,
    /// What did not fit the live mappings of the trace that was simulated.
    pub anomalies: Anomalies,
}

impl Outcome {
    pub(crate) fn new(strategy: String, counts: &Counts, anomalies: Anomalies) -> Self {
        let translated = counts.hits + counts.prefetch_hits + counts.misses;
        let rate = |part: u64| {
            if translated == 0 {
                0.0
            } else {
                part as f64 / translated as f64
            }
        };
        Self {
            strategy,
            accesses: counts.accesses,
            hits: counts.hits,
            prefetch_hits: counts.prefetch_hits,
            misses: counts.misses,
            faults: counts.faults,
            miss_rate: rate(counts.misses),
            prefetches: counts.prefetches,
            useful_prefetches: counts.prefetch_hits,
            evictions: counts.evictions,
            invalidations: counts.invalidations,
            memory_reads: counts.memory_reads,
            reads_per_access: rate(counts.memory_reads),
            prefetch_reads: counts.prefetch_reads,
            anomalies: Anomalies {
                faults: counts.faults,
                ..anomalies
            },
        }
    }
}

/// Runs `trace` through one IOTLB. For several, make a [`Laboratory`] once.
#[must_use]
pub fn simulate(trace: &Trace, setup: &Setup) -> Outcome {
    Laboratory::new(trace).simulate(setup)
}

/// A trace in memory, made ready for any number of simulations, from several threads.
#[derive(Debug)]
pub struct Laboratory<'a> {
    trace: &'a Trace,
    survey: Survey,
    /// By [`View::index`], made when first asked for.
    plans: [OnceLock<Plan>; View::COUNT],
}

/// A view of a whole trace.
#[derive(Debug)]
struct Plan {
    steps: Vec<Step>,
    anomalies: Anomalies,
    devices: usize,
    next_uses: OnceLock<NextUses>,
}

impl<'a> Laboratory<'a> {
    /// Surveys the trace: one pass over it, which all simulations share.
    #[must_use]
    pub fn new(trace: &'a Trace) -> Self {
        Self {
            trace,
            survey: Survey::of(trace),
            plans: Default::default(),
        }
    }

    /// The trace that the laboratory was made of.
    #[must_use]
    pub fn trace(&self) -> &'a Trace {
        self.trace
    }

    /// Makes ready what the first simulation of such a setup would, so that it takes no
    /// longer than the next.
    pub fn prepare(&self, setup: &Setup) {
        let plan = self.plan(setup.view());
        if setup.strategy.has(Part::OptimalEviction) {
            plan.next_uses();
        }
    }

    /// Simulates one setup; its view of the trace is made by the first simulation that needs it.
    #[must_use]
    pub fn simulate(&self, setup: &Setup) -> Outcome {
        self.observed(setup, ())
    }

    /// Simulates, telling `each` how every access ends, in order of time.
    pub fn simulate_with(
        &self,
        setup: &Setup,
        mut each: impl FnMut(EventTime, Ending) + Send,
    ) -> Outcome {
        let events = self.trace.events().iter().enumerate();
        let mut times = events.filter(|(_, event)| matches!(event, Event::Access { .. }));
        self.observed(setup, |_, ending| {
            if let Some((time, _)) = times.next() {
                each(EventTime(time), ending);
            }
        })
    }

    /// Simulates a strategy that is not one of the named. Of the setup's strategy, `of`,
    /// `descending`, `superpage` and `8-prefetch` count: they say what the trace, the sets
    /// and the buffer look like. What is prefetched and evicted is up to `strategy`.
    pub fn simulate_own(&self, setup: &Setup, name: &str, strategy: impl Strategy) -> Outcome {
        let plan = self.plan(setup.view());
        let offsets = offsets(setup, &self.survey);
        let mut engine: Engine<crate::cache::Any, _, _> = Engine::new(setup, strategy, offsets, ());
        engine.run(&plan.steps);
        Outcome::new(name.into(), &engine.finish(), plan.anomalies)
    }

    fn observed(&self, setup: &Setup, observer: impl Observer + Send) -> Outcome {
        let plan = self.plan(setup.view());
        let next_uses = setup
            .strategy
            .has(Part::OptimalEviction)
            .then(|| plan.next_uses());
        let mut engine = engine(setup, &self.survey, next_uses, observer);
        engine.run(&plan.steps);
        Outcome::new(setup.strategy.to_string(), &engine.finish(), plan.anomalies)
    }

    fn plan(&self, view: View) -> &Plan {
        self.plans[view.index()].get_or_init(|| self.make_plan(view))
    }

    fn make_plan(&self, view: View) -> Plan {
        // Nothing needs to be held back where the whole trace is there.
        const WINDOW: usize = 1;
        let events = self.trace.events();
        let long = if view.mirrored {
            long_groups(&self.survey, events.iter(), WINDOW)
        } else {
            Default::default()
        };
        let mut plans = Plans::new(&self.survey, &[view], WINDOW, long);
        events.iter().for_each(|event| plans.event(event));
        plans.end();
        let (mut steps, mut anomalies) = (Vec::new(), Anomalies::default());
        for (_, found, made) in plans.views() {
            (steps, anomalies) = (std::mem::take(made), found);
        }
        Plan {
            steps,
            anomalies,
            devices: self.survey.devices(),
            next_uses: OnceLock::new(),
        }
    }
}

impl Plan {
    fn next_uses(&self) -> &NextUses {
        // A trace in memory has far fewer events than steps can be numbered.
        let find = || NextUses::of(&self.steps, self.devices).unwrap_or_default();
        self.next_uses.get_or_init(find)
    }
}

/// An engine whose parts only its maker knows.
pub(crate) trait Run {
    fn run(&mut self, steps: &[Step]);
    fn finish(&self) -> Counts;
}

impl<C: Cache, S: Strategy, O: Observer> Run for Engine<C, S, O> {
    fn run(&mut self, steps: &[Step]) {
        Engine::run(self, steps);
    }

    fn finish(&self) -> Counts {
        Engine::finish(self)
    }
}

/// What each device's pages are moved by, reduced to the sets there are.
fn offsets(setup: &Setup, survey: &Survey) -> Vec<u64> {
    let sets = setup.geometry.sets() as u128;
    let mut before = 0;
    let of = |device: usize| {
        let offset = if setup.strategy.has(Part::Offset) {
            before % sets
        } else {
            0
        };
        before += survey.consistent_pages(device);
        offset as u64
    };
    (0..survey.devices()).map(of).collect()
}

/// The engine of a setup. `next_uses` must be there if the strategy is the optimal one.
pub(crate) fn engine<'a, O: Observer + Send + 'a>(
    setup: &Setup,
    survey: &Survey,
    next_uses: Option<&'a NextUses>,
    observer: O,
) -> Box<dyn Run + Send + 'a> {
    match setup.geometry.ways() {
        2 => with_cache::<Array<2>, O>(setup, survey, next_uses, observer),
        ways if ways <= SCANNED_WAYS => {
            with_cache::<Array<0>, O>(setup, survey, next_uses, observer)
        }
        _ => with_cache::<Indexed, O>(setup, survey, next_uses, observer),
    }
}

fn with_cache<'a, C: Cache + Send + 'a, O: Observer + Send + 'a>(
    setup: &Setup,
    survey: &Survey,
    next_uses: Option<&'a NextUses>,
    observer: O,
) -> Box<dyn Run + Send + 'a> {
    let (named, toward) = (&setup.strategy, setup.toward);
    let offsets = offsets(setup, survey);
    if let Some(next_uses) = next_uses {
        let strategy = Optimal(next_uses);
        return Box::new(Engine::<C, _, O>::new(setup, strategy, offsets, observer));
    }
    match (named.has(Part::EvictionHint), named.prefetches()) {
        (false, false) => {
            let strategy = Parts::<false, false>::new(named, toward);
            Box::new(Engine::<C, _, O>::new(setup, strategy, offsets, observer))
        }
        (false, true) => {
            let strategy = Parts::<false, true>::new(named, toward);
            Box::new(Engine::<C, _, O>::new(setup, strategy, offsets, observer))
        }
        (true, false) => {
            let strategy = Parts::<true, false>::new(named, toward);
            Box::new(Engine::<C, _, O>::new(setup, strategy, offsets, observer))
        }
        (true, true) => {
            let strategy = Parts::<true, true>::new(named, toward);
            Box::new(Engine::<C, _, O>::new(setup, strategy, offsets, observer))
        }
    }
}
