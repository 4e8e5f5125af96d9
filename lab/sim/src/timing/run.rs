// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a run gave. All of it is the same in every run of the same program and parameters, to the
//! byte.

use crate::timing::{
    account::{Account, Category},
    lines::{Line, LineUse, Place},
    locks::LockState,
    params::{Cycles, HZ, LockModel},
    span,
    state::State,
    topology::Topology,
    unit::UnitUse,
};
use core::panic::Location;
use serde::Serialize;

/// A run that ended well.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Run {
    /// On what it ran.
    pub topology: Topology,
    /// How CPUs waited for locks.
    pub lock_model: LockModel,
    /// Each CPU, in order.
    pub cpus: Vec<CpuRun>,
    /// Each lock that was taken in the measured time, the one most waited for first.
    pub locks: Vec<LockRun>,
    /// Each line that moved in the measured time, the one that took longest first.
    pub lines: Vec<LineRun>,
    /// The unit's invalidation engine, over the whole run.
    pub unit: UnitUse,
    /// Operations of all CPUs in each of [`SLICES`](super::SLICES) equal parts
    /// of the measured time.
    pub slices: Vec<u64>,
    /// Points passed, over the whole run.
    pub points: u64,
    /// Times another CPU went on, over the whole run.
    pub switches: u64,
}

/// What one CPU did in the measured time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CpuRun {
    /// Operations of the workload.
    pub operations: u64,
    /// What they took together, where the workload says so by
    /// [`VirtualCpu::operation_of`](super::VirtualCpu::operation_of).
    pub took: Cycles,
    /// How long it ran.
    pub cycles: Cycles,
    /// Where the time went.
    pub account: Account,
}

/// What happened to one lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LockRun {
    /// The type of its data, and where it was taken first.
    pub name: String,
    /// What it is for.
    pub category: Category,
    /// How often it was taken.
    pub taken: u64,
    /// Of these, after waiting.
    pub contended: u64,
    /// Cycles that CPUs waited for it.
    pub waited: Cycles,
    /// The most CPUs that waited at once.
    pub longest_queue: usize,
}

/// What happened to one cache line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LineRun {
    /// Its number, by the order in which lines were first touched.
    pub line: usize,
    /// What lies in it, and where it was touched first.
    pub name: String,
    /// Accesses by a CPU that held it.
    pub hits: u64,
    /// Of all accesses, those that write.
    pub writes: u64,
    /// Transfers from a CPU of the same socket.
    pub near: u64,
    /// Transfers from a CPU of another socket.
    pub far: u64,
    /// Transfers from memory or a device.
    pub memory: u64,
    /// Cycles of its transfers.
    pub moved: Cycles,
    /// Cycles that CPUs waited for other transfers of it.
    pub queued: Cycles,
}

impl LineRun {
    /// Transfers from CPUs of either kind, and from memory.
    pub fn transfers(&self) -> u64 {
        self.near + self.far + self.memory
    }
}

impl Run {
    /// Operations of all CPUs.
    pub fn operations(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.operations).sum()
    }
    /// Operations a second, of all CPUs.
    pub fn throughput(&self) -> f64 {
        let of = |cpu: &CpuRun| match cpu.cycles.0 {
            0 => 0.0,
            cycles => cpu.operations as f64 * HZ as f64 / cycles as f64,
        };
        self.cpus.iter().map(of).sum()
    }
    /// Where the time of all CPUs went.
    pub fn account(&self) -> Account {
        let mut all = Account::default();
        self.cpus.iter().for_each(|cpu| all.add_all(&cpu.account));
        all
    }
    /// The part of all cycles that was waited for locks of `category`.
    pub fn lock_share(&self, category: Category) -> f64 {
        let account = self.account();
        account.get(category, crate::timing::account::Way::Lock) as f64
            / account.total().max(1) as f64
    }
    /// Transfers of lines an operation.
    pub fn transfers_per_operation(&self) -> f64 {
        let transfers: u64 = self.lines.iter().map(LineRun::transfers).sum();
        transfers as f64 / self.operations().max(1) as f64
    }
    /// The `n` lines whose transfers took longest, waiting for them included.
    pub fn hottest(&self, n: usize) -> &[LineRun] {
        &self.lines[..n.min(self.lines.len())]
    }
    /// Half the width of the interval that holds the throughput with 95 % confidence, as a part of
    /// it; by the spread of the slices. Infinite where nothing was done.
    pub fn uncertainty(&self) -> f64 {
        span::uncertainty(&self.slices)
    }
}

pub(crate) fn locks(state: &State) -> Vec<LockRun> {
    let used = state.locks.all.iter().filter(|lock| lock.use_.taken > 0);
    let mut all: Vec<LockRun> = used
        .map(|lock| LockRun {
            name: lock_name(lock),
            category: lock.category,
            taken: lock.use_.taken,
            contended: lock.use_.contended,
            waited: Cycles(lock.use_.waited),
            longest_queue: lock.use_.longest_queue,
        })
        .collect();
    all.sort_by_key(|lock| core::cmp::Reverse(lock.waited));
    all
}

pub(crate) fn lines(state: &State) -> Vec<LineRun> {
    let all = state.lines.iter().enumerate();
    let moved = all.filter(|(_, line)| line.use_ != LineUse::default());
    let mut all: Vec<LineRun> = moved
        .map(|(number, line)| LineRun {
            line: number,
            name: line_name(state, line),
            hits: line.use_.hits,
            writes: line.use_.writes,
            near: line.use_.near,
            far: line.use_.far,
            memory: line.use_.memory,
            moved: Cycles(line.use_.moved),
            queued: Cycles(line.use_.queued),
        })
        .collect();
    all.sort_by_key(|line| core::cmp::Reverse(line.moved.0 + line.queued.0));
    all
}

fn line_name(state: &State, line: &Line) -> String {
    match line.place {
        Place::Lock { lock, part } => {
            let lock = lock_name(&state.locks.all[lock as usize]);
            match part {
                0 => format!("lock {lock}"),
                _ => format!("data {part} of lock {lock}"),
            }
        }
        Place::Frame { frame, line: part } => {
            format!("frame {}, line {part} ({})", frame + 1, place(line.first))
        }
        Place::Object => place(line.first),
        Place::Block {
            block,
            line: part,
            of,
        } => {
            let (of, by) = (element_type(of), place(line.first));
            format!("block {} of {of}, line {part} ({by})", block + 1)
        }
    }
}

fn lock_name(lock: &LockState) -> String {
    format!("{} ({})", short_type(lock.data), place(lock.first))
}

/// File and line, without the way to the crate.
fn place(location: &Location<'_>) -> String {
    let file = location.file();
    let folders = ["crates/", "lab/"].into_iter();
    let file = folders.fold(file, |file, folder| {
        file.rsplit_once(folder).map_or(file, |(_, rest)| rest)
    });
    format!("{}:{}", file.replace("/src/", "/"), location.line())
}

/// What lies in an element of a block, which may be empty or hold several things: the type of
/// the first, as below.
fn element_type(name: &str) -> &str {
    let value = name.strip_prefix("core::option::Option<").unwrap_or(name);
    let first = value.trim_start_matches('(').split([',', '<', '>']).next();
    short_type(first.unwrap_or(value))
}

/// A type's name without parameters and without the crate.
fn short_type(name: &str) -> &str {
    let bare = name.split('<').next().unwrap_or(name);
    bare.split_once("::").map_or(bare, |(_, rest)| rest)
}
