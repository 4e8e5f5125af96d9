// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Real domains, under the real driver, on many CPUs.

use ioatlas_dma::{
    design::{self, Design},
    domain::{AllocatorConfig, DeferredConfig, Domain, DomainConfig, MacOsConfig, PolicyConfig},
    invalidation::CombiningConfig,
    platform::Platform,
    table::{TableConfig, fmt::VtdSecond48},
    translator::Paged,
    units::*,
};
use ioatlas_sim::{
    platform::Sim,
    timing::{
        workload::{Driver, Iovas, Reaps, Requests, Scenario, System, Workload},
        *,
    },
};
use std::{
    cell::Cell,
    process::{Command, Stdio},
    sync::Arc,
};

type Real = Domain<Sim, Paged<Sim, VtdSecond48, Arc<MachineUnit>>>;

/// Mappings that each CPU has at a time, as a ring has.
const RING: usize = 64;
/// Work between an unmap and the next one.
const WORK: Cycles = Cycles(4000);

const MAGAZINE: AllocatorConfig =
    AllocatorConfig::Magazine(ioatlas_dma::iova::MagazineConfig::DEFAULT);

fn short() -> Span {
    Span::fixed(Cycles::from_us(150), Cycles::from_us(150))
}

fn machine(cpus: usize, params: Params) -> Machine {
    let config = MachineConfig {
        topology: Topology::of_eights(cpus),
        frames: 1 << 10,
        heap: Some(ByteCount(1 << 24)),
    };
    Machine::new(config, params).unwrap()
}

/// Each CPU replaces the oldest mapping of its ring, again and again.
fn run_on(machine: &Machine, design: Design, span: Span) -> Run {
    let unit = machine.bring_up().unwrap();
    let p = machine.platform().clone();
    let translator = Paged::new(&p, unit, design.tables).unwrap();
    let domain: Arc<Real> = Arc::new(Domain::new(p, translator, design.domain).unwrap());
    let timer = Timer {
        period: Cycles::from_ms(10),
        tick: Box::new(|now| {
            let _report = domain.tick(TimeNs(now.ns()));
        }),
    };
    let body = |cpu: &VirtualCpu| {
        let base = 1 << 20 | (cpu.index().0 as u64) << 10;
        // twice as many buffers as mappings: none is mapped twice at a time
        let map = |nth: usize| {
            let page = base + (nth % (2 * RING)) as u64;
            let buffer = PhysRange::new(PhysPage(page).addr(), ByteCount(1500));
            domain.map(buffer, Direction::FromDevice).unwrap()
        };
        let mut ring: Vec<_> = (0..RING).map(map).collect();
        let mut next = RING;
        while cpu.running() {
            cpu.work(WORK);
            let old = core::mem::replace(&mut ring[next % RING], map(next));
            domain.unmap(old).unwrap();
            next += 1;
            cpu.operation();
        }
        for mapping in ring {
            domain.unmap(mapping).unwrap();
        }
    };
    let run = machine.run(span, Some(timer), body);
    run.unwrap_or_else(|why| panic!("{}: {why}", name(design)))
}

fn name(design: Design) -> String {
    design.to_string()
}

fn strict() -> Design {
    DomainConfig::new(MAGAZINE, PolicyConfig::Strict).into()
}

fn run(cpus: usize, design: Design, span: Span) -> Run {
    run_on(&machine(cpus, Params::default()), design, span)
}

#[test]
fn a_globally_locked_design_waits_for_its_locks_and_magazines_do_not() {
    let share = |cpus, allocator, policy| {
        let span = Span::fixed(Cycles::from_us(1000), Cycles::from_us(1000));
        let run = run(cpus, DomainConfig::new(allocator, policy).into(), span);
        run.lock_share(Category::Iova) + run.lock_share(Category::Invalidation)
    };
    let deferred = DeferredConfig::default();
    let (global, percpu) = (
        PolicyConfig::DeferredGlobal(deferred),
        PolicyConfig::DeferredPerCpu(deferred),
    );
    let locked = [1, 2, 8, 16].map(|cpus| share(cpus, AllocatorConfig::RBTREE, global));
    let cached = [1, 2, 8, 16].map(|cpus| share(cpus, MAGAZINE, percpu));
    assert!(locked.is_sorted(), "{locked:?}");
    assert!(locked[3] > 10.0 * cached[3], "{locked:?} {cached:?}");
    assert_eq!((locked[0], cached[0]), (0.0, 0.0));
}

#[test]
fn every_cycle_of_every_design_is_accounted_for_once() {
    for design in design::all() {
        let run = run(4, design, short());
        for cpu in &run.cpus {
            assert_eq!(cpu.account.total(), cpu.cycles.0, "{}", name(design));
        }
        let account = run.account();
        for category in Category::ALL {
            assert!(account.of(category) > 0, "{}: {category:?}", name(design));
        }
        let work = run.operations() * WORK.0;
        let outside = account.of(Category::Outside);
        assert!(
            outside.abs_diff(work) <= 8 * WORK.0,
            "{}: {outside} of {work}",
            name(design)
        );
        // the operation under way at the end is in no slice
        let sliced: u64 = run.slices.iter().sum();
        assert!(run.operations() - sliced <= 4, "{}", name(design));
    }
}

fn all_runs() -> String {
    let runs = design::all().map(|design| {
        let run = run(3, design, short());
        format!(
            "{}: {}\n",
            name(design),
            serde_json::to_string(&run).unwrap()
        )
    });
    runs.collect()
}

/// Moves what the host's allocator gives next.
fn noise(seed: usize) -> Vec<Vec<u8>> {
    let mut kept: Vec<Vec<u8>> = (0..997)
        .map(|i| vec![0; 1 + (i * 7919 + seed) % 700])
        .collect();
    let mut at = 0;
    kept.retain(|_| {
        at += 1;
        at % (2 + seed % 3) != 0
    });
    kept
}

#[test]
fn two_runs_are_the_same_to_the_byte_wherever_the_host_puts_things() {
    let first = all_runs();
    for seed in [1, 77] {
        let kept = noise(seed);
        let again = all_runs();
        for (a, b) in first.lines().zip(again.lines()) {
            assert_eq!(a, b);
        }
        drop(kept);
    }
}

/// Set in the processes that the next test starts: they print their runs.
const PRINTS_RUNS: &str = "IOATLAS_TEST_PRINTS_RUNS";

#[test]
fn two_processes_have_the_same_runs_to_the_byte() {
    if std::env::var_os(PRINTS_RUNS).is_some() {
        let _kept = noise(std::process::id() as usize);
        println!("{}", all_runs());
        return;
    }
    let runs = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let this = "domain::two_processes_have_the_same_runs_to_the_byte";
        command.args(["--exact", this, "--nocapture"]);
        command.env(PRINTS_RUNS, "1").stderr(Stdio::inherit());
        let output = command.output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let mut runs: Vec<String> = text.lines().map(str::to_owned).collect();
        runs.retain(|line| line.contains("\"cpus\""));
        runs
    };
    let (one, two) = (runs(), runs());
    assert_eq!(one.len(), design::all().count());
    assert_eq!(one, two);
}

#[test]
fn the_unit_is_serial_and_an_invalidation_takes_2127_cycles() {
    let strict = strict();
    for factor in [1, 2] {
        let params = Params::default().slower_invalidation(factor);
        let time = 2127 * factor;
        // alone, one after the other with the work between
        let one = run_on(&machine(1, params.clone()), strict, short());
        assert_eq!(one.unit.busy, one.unit.statuses * time);
        assert_eq!((one.unit.pages, one.unit.domains), (one.unit.statuses, 0));
        let each = one.cpus[0].cycles.0 / one.operations();
        assert!(each > WORK.0 + time, "{each}");
        // many keep it busy without a break, and no more than that
        let many = run_on(&machine(8, params), strict, short());
        let possible = Cycles::from_ms(1000).0 as f64 / time as f64;
        let part = many.throughput() / possible;
        assert!((0.97..=1.03).contains(&part), "{part}");
    }
}

#[test]
fn strict_waits_for_the_unit_with_no_lock_held() {
    let strict = strict();
    let run = run(8, strict, short());
    let account = run.account();
    let waited = account.get(Category::Invalidation, Way::Wait);
    assert!(waited > 10 * account.get(Category::Invalidation, Way::Lock));
}

#[test]
fn a_wait_for_room_under_macos_leaves_the_unit_busy() {
    let span = Span::fixed(Cycles::from_us(1000), Cycles::from_us(1000));
    let rate = |policy| run(16, DomainConfig::new(MAGAZINE, policy).into(), span).throughput();
    // an invalidation for each unmap, both: 16 CPUs ask for more than the unit does
    let bound = rate(PolicyConfig::Strict);
    let macos = rate(PolicyConfig::MacOs(MacOsConfig::default()));
    assert!(macos > 0.9 * bound, "{macos} of {bound}");
}

#[test]
fn ticks_flush_what_lies_in_queues() {
    let machine = machine(1, Params::default());
    let unit = machine.bring_up().unwrap();
    let p = machine.platform().clone();
    let translator = Paged::new(&p, unit, TableConfig::default()).unwrap();
    let policy = PolicyConfig::DeferredPerCpu(DeferredConfig::default());
    let config = DomainConfig::new(MAGAZINE, policy);
    let domain: Real = Domain::new(p, translator, config).unwrap();
    let ticks = Cell::new(0);
    let timer = Timer {
        period: Cycles::from_ms(10),
        tick: Box::new(|now| {
            let _report = domain.tick(TimeNs(now.ns()));
            ticks.set(ticks.get() + 1);
        }),
    };
    let span = Span::fixed(Cycles(0), Cycles::from_ms(45));
    let body = |cpu: &VirtualCpu| {
        let buffer = PhysRange::new(PhysPage(1 << 20).addr(), ByteCount(100));
        let mapping = domain.map(buffer, Direction::ToDevice).unwrap();
        domain.unmap(mapping).unwrap();
        while cpu.running() {
            cpu.work(Cycles::from_us(100));
            machine
                .platform()
                .fence(ioatlas_dma::platform::Ordering::SeqCst);
        }
    };
    let run = machine.run(span, Some(timer), body).unwrap();
    assert_eq!(ticks.get(), 4);
    assert_eq!((run.unit.domains, run.unit.statuses), (1, 1));
    assert_eq!(domain.audit().unwrap().usage.allocated, PageCount(0));
}

#[test]
fn the_hottest_lines_have_names() {
    let strict = strict();
    let run = run(8, strict, short());
    let names: Vec<&str> = run
        .hottest(10)
        .iter()
        .map(|line| line.name.as_str())
        .collect();
    assert_eq!(names.len(), 10);
    assert!(
        names
            .iter()
            .any(|name| name.starts_with("dma/invalidation/mod.rs:")),
        "{names:?}"
    );
    assert!(
        names
            .iter()
            .any(|name| name.starts_with("lock queue::Place (")),
        "{names:?}"
    );
    assert!(
        names.iter().any(|name| name.starts_with("frame ")),
        "{names:?}"
    );
}

#[test]
fn things_in_magazines_and_queues_have_lines_of_their_own() {
    let policy = PolicyConfig::DeferredPerCpu(DeferredConfig::default());
    let run = run(2, DomainConfig::new(MAGAZINE, policy).into(), short());
    for of in ["units::IovaPage", "policy::batch::CpuResource"] {
        let named = format!(" of {of}, line ");
        let lines = run.lines.iter().filter(|line| line.name.contains(&named));
        assert!(lines.count() >= 4, "{of}");
    }
}

/// What the unit did in request-response on 16 CPUs, strict, with operations in the same time.
fn unit_of(driver: Driver) -> (UnitUse, u64) {
    let scenario = Scenario {
        system: System::Design(Design::parse("magazine,strict").unwrap()),
        workload: Workload::RequestResponse,
        driver,
        topology: Topology::of_eights(16),
        span: Span::fixed(Cycles::from_us(0), Cycles::from_us(500)),
        seed: 7,
    };
    let run = scenario.run(&Params::default()).unwrap().run;
    (run.unit, run.operations())
}

#[test]
fn combined_requests_of_cpus_share_the_units_waits() {
    let direct = Driver {
        costs: Params::default().costs(),
        ..Driver::default()
    };
    let combined = Driver {
        requests: Requests::Combined(CombiningConfig::default()),
        ..direct
    };
    let ((apart, fewer), (together, more)) = (unit_of(direct), unit_of(combined));
    assert!(apart.statuses >= 2 * fewer, "one for each of two unmaps");
    assert!(more > fewer, "{more} operations, {fewer} each by itself");
    assert!(3 * together.statuses < apart.statuses, "{together:?}");
}

#[test]
fn what_one_ring_reaps_of_a_chunk_is_one_range() {
    let chunks = Driver {
        costs: Params::default().costs(),
        reaps: Reaps::EachRing(16),
        iovas: Iovas::InChunks(PageCount(16)),
        ..Driver::default()
    };
    let (unit, operations) = unit_of(chunks);
    assert_eq!(unit.domains, 0, "several ranges would be the domain's");
    // at the end rings are unmapped one by one
    let left = 16 * (256 + 32);
    assert!(unit.statuses < operations / 2 + left, "{unit:?}");
}
