// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Cache lines: which CPUs hold which, and what it costs to get one.
//!
//! # Theory
//!
//! Each line of 64 bytes is held by a set of CPUs: none (it is in memory), one, which may write it,
//! or several, which may read it. A CPU that holds it in the way it needs *hits*. Else the line is
//! *transferred*: to read, from the nearest holder; to write, all other holders let go of it, which
//! takes as long as the farthest one. A line serves **one transfer at a time**, in the order in
//! which CPUs ask; so a hot line is a queue. Caches are never full: nothing is evicted.
//!
//! **Names.** A line is known by the order in which lines were first touched, and called by the
//! source line that touched it first; a frame's lines by frame and offset. Addresses of the host
//! only find lines. What shares a line is said in [`platform`](crate::platform).
//!
//! **Blocks.** What a lock guards behind a pointer, the core tells the platform
//! ([`Atomic64::touches`](ioatlas_dma::platform::Atomic64::touches)): what lies in magazines, in
//! the depot and in the queues of the deferred policies. A block counts as one that begins a line,
//! wherever the host has put it. Its lines are followed as others are, but cost nothing:
//! [`Params::guarded_lines`] charges for them, for every lock alike. Trees, and the queues of
//! `macos` and `solaris`, are not told.

use crate::timing::{
    params::Params,
    topology::{CpuSet, Topology},
};
use core::{hash::Hasher, panic::Location};
use std::{collections::HashMap, hash::BuildHasherDefault};

/// Bytes of a line.
pub(crate) const LINE: usize = 64;

/// A line, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LineId(u32);

/// Where a line is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Line `line` of frame `frame`, counted from 0.
    Frame { frame: u32, line: u32 },
    /// In some other object.
    Object,
    /// Line `part` of lock `lock`.
    Lock { lock: u32, part: u32 },
    /// Line `line` of block `block` of the host's heap, whose elements are `of`.
    Block {
        block: u32,
        line: u32,
        of: &'static str,
    },
}

pub(crate) struct Line {
    holders: CpuSet,
    /// It was last written by a device: a CPU that reads it gets it from there.
    by_device: bool,
    busy_until: u64,
    pub(crate) place: Place,
    pub(crate) first: &'static Location<'static>,
    pub(crate) use_: LineUse,
}

/// What happened to a line since the measurement began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LineUse {
    pub(crate) hits: u64,
    /// Of all accesses, those that write.
    pub(crate) writes: u64,
    pub(crate) near: u64,
    pub(crate) far: u64,
    pub(crate) memory: u64,
    /// Cycles that CPUs waited for other transfers of it.
    pub(crate) queued: u64,
    /// Cycles of its transfers.
    pub(crate) moved: u64,
}

/// What to do with a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    Read,
    Write,
}

/// What an access took.
pub(crate) struct Taken {
    /// From the request to having it.
    pub(crate) cycles: u64,
    pub(crate) hit: bool,
    /// CPUs that lost the line by it.
    pub(crate) lost: CpuSet,
}

pub(crate) struct Lines {
    lines: Vec<Line>,
    by_address: HashMap<usize, LineId, BuildHasherDefault<Spread>>,
    blocks: Blocks,
    frames: Frames,
    sockets: Vec<CpuSet>,
    topology: Topology,
    costs: Costs,
}

/// Blocks of the host's heap that locks guard, known by the order in which they were first touched.
#[derive(Default)]
struct Blocks {
    by_address: HashMap<usize, u32, BuildHasherDefault<Spread>>,
    /// Their lines, each block's by number from its beginning.
    lines: Vec<Vec<Option<LineId>>>,
}

/// Frames are found by arithmetic.
struct Frames {
    base: usize,
    bytes: usize,
    lines: Vec<Option<LineId>>,
    /// The CPU that zeroed the frame last, and so has its lines.
    zeroed_by: Vec<Option<u16>>,
}

#[derive(Clone, Copy)]
struct Costs {
    hit: u64,
    near: u64,
    far: u64,
    memory: u64,
    from_device: u64,
}

impl Lines {
    /// `frames_at` is where the host has the machine's `frames` frames.
    pub(crate) fn new(
        params: &Params,
        topology: Topology,
        frames_at: usize,
        frames: usize,
    ) -> Self {
        let bytes = frames * 4096;
        let sockets = topology.cpus.div_ceil(topology.cpus_per_socket);
        let mut members = vec![CpuSet::EMPTY; sockets];
        (0..topology.cpus).for_each(|cpu| members[topology.socket(cpu)].insert(cpu));
        Lines {
            lines: Vec::new(),
            by_address: HashMap::default(),
            blocks: Blocks::default(),
            frames: Frames {
                base: frames_at,
                bytes,
                lines: vec![None; bytes / LINE],
                zeroed_by: vec![None; frames],
            },
            sockets: members,
            topology,
            costs: Costs {
                hit: params.hit,
                near: params.transfer_near,
                far: params.transfer_far,
                memory: params.memory,
                from_device: params.from_device,
            },
        }
    }

    /// The line at `address` of the host.
    pub(crate) fn at(&mut self, address: usize, by: &'static Location<'static>) -> LineId {
        let offset = address.wrapping_sub(self.frames.base);
        if offset < self.frames.bytes {
            return self.of_frame(offset / LINE, by);
        }
        let place = Place::Object;
        self.object(address, place, by)
    }

    /// The line at `address`, which is called `place` if it is new.
    pub(crate) fn object(
        &mut self,
        address: usize,
        place: Place,
        by: &'static Location<'static>,
    ) -> LineId {
        let lines = &mut self.lines;
        *self
            .by_address
            .entry(address / LINE)
            .or_insert_with(|| add(lines, place, by))
    }

    fn of_frame(&mut self, number: usize, by: &'static Location<'static>) -> LineId {
        if let Some(line) = self.frames.lines[number] {
            return line;
        }
        let place = Place::Frame {
            frame: (number / 64) as u32,
            line: (number % 64) as u32,
        };
        let line = add(&mut self.lines, place, by);
        if let Some(cpu) = self.frames.zeroed_by[number / 64] {
            self.lines[line.0 as usize].holders.insert(cpu.into());
        }
        self.frames.lines[number] = Some(line);
        line
    }

    /// CPU `cpu` wants `line` at time `now`.
    #[inline]
    pub(crate) fn access(&mut self, cpu: usize, line: LineId, want: Want, now: u64) -> Taken {
        let line = &mut self.lines[line.0 as usize];
        line.use_.writes += u64::from(want == Want::Write);
        if line.holders.has(cpu) {
            let alone = want == Want::Read || line.holders == CpuSet::only(cpu);
            if alone {
                line.use_.hits += 1;
                return Taken {
                    cycles: self.costs.hit,
                    hit: true,
                    lost: CpuSet::EMPTY,
                };
            }
        }
        let others = line.holders.without(&CpuSet::only(cpu));
        let mine = &self.sockets[self.topology.socket(cpu)];
        let (near, far) = (others.meets(mine), !others.without(mine).is_empty());
        let (cost, count) = match (want, near, far) {
            (_, false, false) if line.by_device => (self.costs.from_device, &mut line.use_.memory),
            (_, false, false) => (self.costs.memory, &mut line.use_.memory),
            (Want::Read, true, _) | (Want::Write, true, false) => {
                (self.costs.near, &mut line.use_.near)
            }
            (Want::Read, false, true) | (Want::Write, _, true) => {
                (self.costs.far, &mut line.use_.far)
            }
        };
        *count += 1;
        let start = now.max(line.busy_until);
        line.busy_until = start + cost;
        line.use_.queued += start - now;
        line.use_.moved += cost;
        line.by_device = false;
        let lost = match want {
            Want::Read => {
                line.holders.insert(cpu);
                CpuSet::EMPTY
            }
            Want::Write => {
                line.holders = CpuSet::only(cpu);
                others
            }
        };
        Taken {
            cycles: line.busy_until - now,
            hit: false,
            lost,
        }
    }

    /// CPU `cpu` reads and writes line `number` of the block at `block`, whose elements are `of`.
    /// Where it comes from is noted, and costs nothing: the lock that guards the block is charged
    /// for lines behind pointers.
    pub(crate) fn note(
        &mut self,
        cpu: usize,
        (block, number): (usize, usize),
        of: &'static str,
        by: &'static Location<'static>,
    ) {
        let (lines, blocks) = (&mut self.lines, &mut self.blocks.lines);
        let block = *self.blocks.by_address.entry(block).or_insert_with(|| {
            blocks.push(Vec::new());
            blocks.len() as u32 - 1
        });
        let of_block = &mut blocks[block as usize];
        if of_block.len() <= number {
            of_block.resize(number + 1, None);
        }
        let line = *of_block[number].get_or_insert_with(|| {
            let line = number as u32;
            add(lines, Place::Block { block, line, of }, by)
        });
        let line = &mut self.lines[line.0 as usize];
        line.use_.writes += 1;
        let me = CpuSet::only(cpu);
        let count = match core::mem::replace(&mut line.holders, me) {
            CpuSet::EMPTY => &mut line.use_.memory,
            was if was == me => &mut line.use_.hits,
            was if was.meets(&self.sockets[self.topology.socket(cpu)]) => &mut line.use_.near,
            _ => &mut line.use_.far,
        };
        *count += 1;
    }

    /// What lies at `block` from now on is another block.
    pub(crate) fn freed(&mut self, block: usize) {
        self.blocks.by_address.remove(&block);
    }

    /// A device writes `line`: no CPU holds it any more. Returns those that did.
    pub(crate) fn device_writes(&mut self, line: LineId) -> CpuSet {
        let line = &mut self.lines[line.0 as usize];
        line.by_device = true;
        core::mem::take(&mut line.holders)
    }

    /// All CPUs of `readers` read `line`, one after the other, from time `now` on. Returns
    /// when all have it.
    pub(crate) fn all_read(
        &mut self,
        line: LineId,
        readers: impl Iterator<Item = usize>,
        now: u64,
    ) -> u64 {
        readers.fold(now, |now, cpu| {
            now + self.access(cpu, line, Want::Read, now).cycles
        })
    }

    /// What a line takes from one CPU to another.
    pub(crate) fn distance(&self, from: usize, to: usize) -> u64 {
        match self.topology.socket(from) == self.topology.socket(to) {
            true => self.costs.near,
            false => self.costs.far,
        }
    }

    /// CPU `cpu` has just written all of frame `frame`, counted from 0.
    pub(crate) fn zeroed(&mut self, cpu: usize, frame: usize) {
        self.frames.zeroed_by[frame] = Some(cpu as u16);
        for line in &self.frames.lines[64 * frame..][..64] {
            let Some(line) = line else { continue };
            let line = &mut self.lines[line.0 as usize];
            line.holders = CpuSet::only(cpu);
            line.by_device = false;
        }
    }

    /// Forgets what happened so far, not which CPUs hold what.
    pub(crate) fn forget_use(&mut self) {
        self.lines
            .iter_mut()
            .for_each(|l| l.use_ = LineUse::default());
    }
    /// All lines, in the order in which they were first touched.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter()
    }
}

fn add(lines: &mut Vec<Line>, place: Place, first: &'static Location<'static>) -> LineId {
    let id = LineId(lines.len() as u32);
    lines.push(Line {
        holders: CpuSet::EMPTY,
        by_device: false,
        busy_until: 0,
        place,
        first,
        use_: LineUse::default(),
    });
    id
}

/// Spreads line numbers over a hash table by one multiplication: no attacker chooses addresses.
#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed")
    }
    fn write_usize(&mut self, number: usize) {
        self.0 = (number as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(20);
    }
}
