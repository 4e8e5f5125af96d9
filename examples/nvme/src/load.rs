// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Many reads at once, under one policy: what is measured, and what is verified.
//!
//! A load keeps `depth` reads of one size under way. Each read uses one of `depth` buffers, which
//! the CPU owns again between two of its reads; what is between those two moments is the policy's
//! cost: map, describe, submit, complete, unmap. Time is the *thread's processor time*. In a guest
//! whose clock counts instructions this is the number of instructions, the kernel's included.
//!
//! A driver that spins ([`Idle::Spin`]) takes each completion as it comes; its processor time
//! is all time. One that naps waits for all that is under way, and its waiting is left out:
//! what remains is what the reads cost the processor, and depends neither on the device nor
//! on what else runs.

use crate::{
    memory::{OWNER, lend},
    nvme::{NvmeError, command::*, namespace::Namespace, queue::*},
    pattern::{self, Expected},
    policy::{BURST, Policy},
    window::{Idle, TimedOut},
};
use ioatlas_dma::{
    dma_api::*,
    platform::{CopyMemory, FreshFrame, Platform},
    translator::Translator,
    units::*,
};
use ioatlas_host::Host;
use rustix::time::{ClockId, clock_gettime};
use std::{cell::Cell, sync::Arc};

/// Memory for many buffers, contiguous in the arena. What it is in the machine
/// depends on the arena.
///
/// It is freed when this is dropped, unless a device may still have some
/// of it: see [`while_lent`](Self::while_lent).
pub struct Buffers {
    platform: Arc<Host>,
    frames: Vec<FreshFrame>,
    whose: Cell<Whose>,
    /// From one buffer to the next.
    stride: u64,
    count: usize,
}

impl Buffers {
    /// `count` buffers of up to `len`.
    ///
    /// # Errors
    /// [`NvmeError::NoMemory`], also where the arena is in pieces.
    pub fn new(platform: Arc<Host>, count: usize, len: ByteCount) -> Result<Self, NvmeError> {
        let stride = len.0.next_multiple_of(GRANULE);
        let pages = stride / GRANULE * count as u64;
        let mut all: Vec<FreshFrame> = Vec::new();
        // what others gave back comes first, in whatever order
        let found = loop {
            let more = (0..pages.max(1)).map_while(|_| platform.frame_alloc());
            let before = all.len();
            all.extend(more);
            all.sort_unstable_by_key(|frame| frame.page().0);
            let first = run_of(&all, pages as usize);
            if first.is_some() || all.len() == before {
                break first;
            }
        };
        let frames = match found {
            Some(first) => all.drain(first..first + pages as usize).collect(),
            None => Vec::new(),
        };
        all.into_iter()
            .for_each(|frame| platform.frame_free(OWNER, frame));
        if frames.is_empty() {
            return Err(NvmeError::NoMemory(ByteCount(pages * GRANULE)));
        }
        Ok(Buffers {
            platform,
            stride,
            count,
            frames,
            whose: Cell::new(Whose::Ours),
        })
    }
    /// Does `work`, which maps buffers, and has unmapped all of them when it succeeds. Where it
    /// fails, or panics, some may be mapped still, and a device may write there: their memory is
    /// not used again then.
    pub fn while_lent<R, E>(&self, work: impl FnOnce() -> Result<R, E>) -> Result<R, E> {
        let before = self.whose.replace(Whose::Lent);
        let done = work()?;
        self.whose.set(before);
        Ok(done)
    }
    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }
    /// The first `len` bytes of one of them.
    pub fn buffer(&self, nth: usize, len: ByteCount) -> PhysRange {
        let first = self.frames[0].page().addr().0;
        PhysRange::new(PhysAddr(first + nth as u64 * self.stride), len)
    }
    /// All of one of them.
    pub fn whole(&self, nth: usize) -> PhysRange {
        self.buffer(nth, ByteCount(self.stride))
    }
}

/// Whether a device may write to buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    Ours,
    /// Some are mapped, or were when it was given up.
    Lent,
}

/// Where in `frames`, which ascend, so many follow each other.
fn run_of(frames: &[FreshFrame], pages: usize) -> Option<usize> {
    let mut first = 0;
    for at in 0..frames.len() {
        if at > first && frames[at].page().0 != frames[at - 1].page().0 + 1 {
            first = at;
        }
        if at + 1 - first == pages {
            return Some(first);
        }
    }
    None
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if self.whose.get() == Whose::Ours {
            let frames = self.frames.drain(..);
            frames.for_each(|frame| self.platform.frame_free(OWNER, frame));
        }
    }
}

/// What a load is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Load<'e> {
    pub policy: Policy,
    /// Bytes of a read.
    pub size: ByteCount,
    /// Reads under way at once.
    pub depth: Depth,
    pub reads: u32,
    /// Bytes before each buffer in its first granule. A multiple of 512.
    pub offset: ByteCount,
    /// What every byte of what was read is held against, and then every byte of the buffer's
    /// granules beside it against a canary. `None`: it is to be fast.
    pub check: Option<&'e Expected>,
}

/// What happened to the reads of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // its fields say it
pub struct Seen {
    /// Reads that were completed.
    pub reads: u64,
    /// The thread's processor time.
    pub cpu_ns: u64,
    pub wall_ns: u64,
    /// Bytes that are not what lies on the disk there, where that was looked at.
    pub wrong_bytes: u64,
    /// Bytes beside buffers that have changed.
    pub changed_bytes: u64,
    /// Reads that the controller reported as failed.
    pub failed: u64,
}

/// Carries `load` out on `queue`, which has nothing under way.
///
/// # Errors
/// [`NvmeError`]; what is mapped then stays so, and `buffers` keep their memory
/// from others for good.
pub fn run<T: Translator<Host>>(
    load: &Load<'_>,
    queue: &mut QueuePair,
    client: &Client<Host, T>,
    from: &Namespace,
    buffers: &Buffers,
    idle: Idle,
) -> Result<Seen, NvmeError> {
    buffers.while_lent(|| carry_out(load, queue, client, from, buffers, idle))
}

fn carry_out<T: Translator<Host>>(
    load: &Load<'_>,
    queue: &mut QueuePair,
    client: &Client<Host, T>,
    from: &Namespace,
    buffers: &Buffers,
    idle: Idle,
) -> Result<Seen, NvmeError> {
    let depth = usize::from(load.depth.0).min(buffers.count());
    let blocks = from.blocks_of(load.size)?;
    let known = load.check.map_or(from.len(), Expected::len).min(from.len());
    let positions = (known.0 / load.size.0).max(1);
    let buffer = |nth: usize| {
        let whole = buffers.buffer(nth, load.size);
        PhysRange::new(PhysAddr(whole.addr.0 + load.offset.0), load.size)
    };
    let mut kept = Vec::new();
    if load.policy == Policy::Static {
        for nth in 0..depth {
            kept.push(client.map_single(lend(buffer(nth)), Direction::FromDevice)?);
        }
    }
    let mut work = Work {
        lent: (0..depth).map(|_| None).collect(),
        idle: (0..depth).rev().collect(),
        owner: vec![0; queue.entries() as usize],
        at: vec![ByteCount(0); depth],
        reaped: Vec::with_capacity(BURST),
        seen: Seen::default(),
    };
    let mut stream = load.policy.stream(client);
    let wall = crate::policy::monotonic().0;
    let mut cpu = cpu_ns();
    let mut begun = 0;
    while work.seen.reads < u64::from(load.reads) {
        let before = begun;
        while begun < load.reads {
            let Some(nth) = work.idle.pop() else { break };
            let at = ByteCount(u64::from(begun) % positions * load.size.0);
            if load.check.is_some() {
                let whole = buffers.whole(nth);
                pattern::plant(
                    OWNER,
                    client.dma().domain().platform().as_ref(),
                    nth as u64,
                    whole,
                )
                .map_err(DmaMapError::from)?;
            }
            let iova = match kept.get(nth) {
                Some(mapping) => mapping.iova(),
                None => {
                    let mapping = load.policy.map(client, &mut stream, buffer(nth))?;
                    let lent = work.lent[nth].insert(mapping);
                    lent.iova()
                }
            };
            let first = Block(at.0 / from.block.0);
            let id = queue.submit([(iova, load.size)], |data| {
                Command::read(from.id, first, blocks, data)
            })?;
            (work.owner[usize::from(id.0)], work.at[nth]) = (nth, at);
            begun += 1;
        }
        if begun > before {
            queue.ring();
        }
        if let Idle::Nap(_) = idle {
            work.seen.cpu_ns += cpu_ns() - cpu;
            await_all(queue, idle)?;
            cpu = cpu_ns();
        }
        harvest(load, queue, client, buffers, &mut work, idle, buffer)?;
    }
    let mut seen = work.seen;
    seen.cpu_ns += cpu_ns() - cpu;
    seen.wall_ns = crate::policy::monotonic().0 - wall;
    for mapping in kept {
        client.unmap(mapping)?;
    }
    Ok(seen)
}

/// What is under way.
struct Work {
    /// The mapping of each buffer, by number.
    lent: Vec<Option<DmaMapping>>,
    idle: Vec<usize>,
    /// The buffer of each command.
    owner: Vec<usize>,
    /// Where each buffer's bytes come from.
    at: Vec<ByteCount>,
    /// The buffers of completions whose data were not looked at yet: a burst at most.
    reaped: Vec<usize>,
    seen: Seen,
}

/// Waits until nothing is under way.
fn await_all(queue: &QueuePair, idle: Idle) -> Result<(), NvmeError> {
    let all = queue.under_way();
    let done = idle.until(COMPLETION_LIMIT, || {
        (queue.completed(all) == all).then_some(())
    });
    done.map_err(|TimedOut(waited)| NvmeError::NoAnswer {
        queue: queue.id(),
        waited,
    })
}

/// Waits for completions, and takes all there are, by the burst.
fn harvest<T: Translator<Host>>(
    load: &Load<'_>,
    queue: &mut QueuePair,
    client: &Client<Host, T>,
    buffers: &Buffers,
    work: &mut Work,
    idle: Idle,
    buffer: impl Fn(usize) -> PhysRange,
) -> Result<(), NvmeError> {
    let in_bursts = load.policy == Policy::MapUnmapBursts;
    let mut next = Some(queue.wait(idle)?);
    while let Some(done) = next {
        let nth = work.owner[usize::from(done.id.0)];
        work.seen.failed += u64::from(done.status.is_some());
        work.reaped.push(nth);
        if in_bursts {
            next = queue.poll()?;
            if next.is_some() && work.reaped.len() < BURST {
                continue;
            }
            end_burst(client, work)?;
        } else {
            if let Some(mapping) = work.lent[nth].take() {
                client.unmap(mapping)?;
            }
            next = queue.poll()?;
        }
        // no device reaches any of these buffers now
        while let Some(nth) = work.reaped.pop() {
            work.seen.reads += 1;
            if let Some(expected) = load.check {
                let p = client.dma().domain().platform().as_ref();
                check(p, expected, work, nth, buffer(nth), buffers.whole(nth))
                    .map_err(DmaMapError::from)?;
            }
            work.idle.push(nth);
        }
    }
    queue.acknowledge();
    Ok(())
}

/// Unmaps what was reaped, by one call.
#[inline(never)] // the other policies' loop is to be as small as it would be without
fn end_burst<T: Translator<Host>>(
    client: &Client<Host, T>,
    work: &mut Work,
) -> Result<(), NvmeError> {
    let lent = &mut work.lent;
    let mut mappings = work.reaped.iter().filter_map(|nth| lent[*nth].take());
    let unmapped = client.unmap_batch(&mut mappings, drop);
    Ok(unmapped.map_err(Box::new)?)
}

fn check(
    p: &Host,
    expected: &Expected,
    work: &mut Work,
    nth: usize,
    buffer: PhysRange,
    whole: PhysRange,
) -> Result<(), ioatlas_dma::platform::NotMemoryError> {
    let mut bytes = vec![0; buffer.len.0 as usize];
    p.read(OWNER, buffer.addr, &mut bytes)?;
    work.seen.wrong_bytes += expected.wrong_bytes(&bytes, work.at[nth]) as u64;
    let begin = PhysRange::new(whole.addr, ByteCount(buffer.addr.0 - whole.addr.0));
    let end = buffer.addr.0 + buffer.len.0;
    let rest = PhysRange::new(PhysAddr(end), ByteCount(whole.addr.0 + whole.len.0 - end));
    for beside in [begin, rest] {
        if beside.len.0 > 0 {
            work.seen.changed_bytes += pattern::changed(OWNER, p, nth as u64, beside)? as u64;
        }
    }
    Ok(())
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_host::HostConfig;

    #[test]
    fn buffers_are_contiguous_whatever_had_their_frames_before() {
        let host = Arc::new(Host::new(HostConfig::default().frames(16).slots(1)));
        for _ in 0..3 {
            let buffers = Buffers::new(host.clone(), 3, ByteCount(5000)).unwrap();
            let [first, last] = [0, 2].map(|nth| buffers.whole(nth).addr.0);
            assert_eq!(last - first, 4 * GRANULE);
            assert_eq!(host.frames_in_use(), 6);
        }
        assert_eq!(host.frames_in_use(), 0);
        let hole = host.frame_alloc().unwrap();
        assert!(Buffers::new(host.clone(), 4, ByteCount(16 << 10)).is_err());
        host.frame_free(OWNER, hole);
        assert_eq!(host.frames_in_use(), 0);
    }
}
