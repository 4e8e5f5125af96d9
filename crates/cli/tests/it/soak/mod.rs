// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas vhost-net` among hostile front ends and guests, for as long as one likes: the program
//! lives, its descriptors and mappings do not grow, nothing of a guest's is accessed that is not
//! mapped, and the next front end that means well is served.
//!
//! What is hostile is drawn from a seed, a round at a time, and a round is a number of things to
//! do. `IOATLAS_SOAK_SECONDS` says for how long rounds are begun (30), `IOATLAS_SOAK_SEED` with
//! which seed.

mod guest;
mod messages;

use crate::by_hand::MEMORY;
use crate::vhost_net::{Program, case, common::driver::Kind, common::front::*};
use fastrand::Rng;
use ioatlas_vhost_net::Wakeup;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Mappings more than in the beginning that are no leak: heaps of the C library that have grown.
/// What front ends leak is a mapping each time.
const KEPT: usize = 16;

/// So often of a hundred times.
fn percent(random: &mut Rng, times: u64) -> bool {
    random.u64(..100) < times
}

/// What a process has of the system's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Holdings {
    descriptors: usize,
    /// But for stacks and heaps, which the C library keeps for threads to come, a number for each
    /// CPU.
    mappings: usize,
    /// Mappings of files in memory, as guest memory is.
    of_files: usize,
}

fn holdings(pid: u32) -> Holdings {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    // Each queue's thread has one of these for asynchronous I/O.
    let of_files = maps
        .lines()
        .filter(|line| line.contains(" (deleted)") && !line.contains("/[aio]"));
    Holdings {
        descriptors: open.count(),
        mappings: maps.lines().filter(|line| !is_kept(line)).count(),
        of_files: of_files.count(),
    }
}

/// Whether a mapping is as those that the C library keeps: without a name, and smaller than a front
/// end's memory, or out of reach.
fn is_kept(line: &str) -> bool {
    // addresses, permissions, offset, device, inode, name
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [range, permissions, _, _, _] = fields[..] else {
        return false;
    };
    let at = |text: Option<&str>| u64::from_str_radix(text.unwrap_or(""), 16).unwrap_or(0);
    let mut ends = range.split('-');
    let (first, end) = (at(ends.next()), at(ends.next()));
    permissions.starts_with("---") || end - first < MEMORY
}

/// The program, and what it had before anything hostile came.
struct Soaked {
    program: Program,
    before: Holdings,
}

impl Soaked {
    fn start(arguments: &[&str]) -> Self {
        let mut program = Program::start(arguments);
        // What is made once is made by the first.
        for kind in [Kind::Split, Kind::Packed] {
            serve(&mut program, kind);
        }
        let pid = program.pid();
        // When that is served, the ones before have ended.
        drop(program.connect());
        let start = Instant::now();
        let mut before = holdings(pid);
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let now = holdings(pid);
            if now == before && now.of_files == 0 {
                return Soaked { program, before };
            }
            assert!(start.elapsed() < SOON, "it never comes to rest: {now:?}");
            before = now;
        }
    }

    /// After a round: it lives, has no more than before, and serves a front end that means well.
    fn check(&mut self) {
        serve(&mut self.program, Kind::Split);
        let (pid, start, before) = (self.program.pid(), Instant::now(), self.before);
        loop {
            let now = holdings(pid);
            let same = now.descriptors <= before.descriptors
                && now.of_files == 0
                && now.mappings <= before.mappings + KEPT;
            if same {
                return;
            }
            assert!(
                start.elapsed() < SOON,
                "it grows: {now:?}, before {before:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it; returns what it counted.
    fn end(self) -> serde_json::Value {
        self.program.statistics(Signal::TERM)
    }
}

/// A front end that means well exchanges some frames.
fn serve(program: &mut Program, kind: Kind) {
    let mut case = case(kind, Wakeup::Notify);
    case.pairs = 1;
    let mut front = Front::new(program.connect(), &case);
    front.exchange(&case, 10);
    front.stop(case.pairs);
    front.guest.assert_canaries();
}

/// Ways to run the program; of each round one. None gives questions up: a front end that means well
/// may be slow.
const WAYS: [&[&str]; 5] = [
    &["--json"],
    &["--json", "--iotlb", "list", "--wakeup", "poll"],
    &["--json", "--iotlb", "interval"],
    &["--json", "--queue-pairs", "2", "--wakeup", "poll"],
    &["--json", "--iotlb-runs", "64", "--iotlb-tables", "54"],
];

/// What a round does.
#[derive(Clone, Copy)]
struct Round {
    connections: u64,
    lives: u64,
}

fn round(arguments: &[&str], seed: u64, of: Round) {
    println!("round {seed}: {arguments:?}");
    let random = &mut Rng::with_seed(seed);
    let mut soaked = Soaked::start(arguments);
    messages::attack(&mut soaked.program, random, of.connections);
    soaked.check();
    let used = guest::attack(&mut soaked.program, random, of.lives);
    soaked.check();
    let said = soaked.end();
    println!(
        "{used} rings with used buffers; {} connections, {} updates, {} refused, {} invalidations, {} questions, {} frames, {} queues stopped",
        said["connections"],
        said["updates"],
        said["refused_updates"],
        said["invalidations"],
        said["questions"]["sent"],
        said["pairs"][0]["transmitted"],
        said["pairs"][0]["stopped"],
    );
    // It was an attack: messages were obeyed, and guests got somewhere.
    assert!(used > 0 && said["updates"].as_u64() > Some(0), "{said}");
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect(name))
}

#[test]
fn hostile_front_ends_and_guests_for_a_moment() {
    let of = Round {
        connections: 60,
        lives: 15,
    };
    for (number, arguments) in WAYS.iter().enumerate() {
        round(arguments, number as u64, of);
    }
}

#[test]
#[ignore = "takes as long as one likes: ci/full.sh soak"]
fn hostile_front_ends_and_guests() {
    let of = Round {
        connections: 500,
        lives: 100,
    };
    let length = Duration::from_secs(variable("IOATLAS_SOAK_SECONDS", 30));
    let (start, seed) = (Instant::now(), variable("IOATLAS_SOAK_SEED", 1000));
    let mut number = 0;
    while start.elapsed() < length || number < WAYS.len() as u64 {
        let arguments = WAYS[number as usize % WAYS.len()];
        round(arguments, seed + number, of);
        number += 1;
    }
    println!("{number} rounds in {:?}", start.elapsed());
}
