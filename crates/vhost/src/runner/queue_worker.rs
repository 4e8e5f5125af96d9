// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One thread's queues and its way to memory; and the loop over descriptor chains that most devices
//! need.

use super::{Failure, Next, Ring, Stop};
use crate::{
    cache::IotlbReader,
    guest_memory::{GuardedMemory, IovaMemory},
    log_limit::peer_log,
    protocol::{memory::MemoryTable, sigbus},
};
use ioatlas_dma::{platform::Ordering, units::*};
use virtio_queue::{DescriptorChain, QueueOwnedT, QueueT};

/// Chains that are processed under one guard: an invalidation waits for no more.
pub const CHAINS_PER_BATCH: usize = 32;
/// Buffers that are translated ahead; with more, a batch's last chains are translated
/// as they are met.
const BUFFERS_AHEAD: usize = 4096;
/// Descriptors of a chain, indirect ones included, where the ring is shorter. (Virtio 1.2,
/// 2.7.5.3.1: not more than the ring is long. Drivers are known to be generous.)
const LONGEST_CHAIN: usize = 1024;

/// A descriptor chain under the guard in which it is processed.
pub type Chain<'b, 'm, R> = DescriptorChain<&'b GuardedMemory<'m, R>>;

/// What a thread of the runner works with.
#[derive(Debug)]
pub struct QueueWorker<R> {
    pub(super) thread: usize,
    pub(super) rings: Vec<Ring>,
    pub(super) memory: IovaMemory<R>,
    /// Keeps what the cache names mapped while this thread may use it.
    pub(super) table: MemoryTable,
    /// Buffers of the next batch.
    wanted: Vec<(Iova, ByteCount, Perm)>,
}

impl<R: IotlbReader> QueueWorker<R> {
    pub(super) fn new(thread: usize, rings: Vec<Ring>, memory: IovaMemory<R>) -> Self {
        QueueWorker {
            thread,
            rings,
            memory,
            table: MemoryTable::default(),
            wanted: Vec::new(),
        }
    }

    /// The thread's number, counted from 0.
    pub fn thread(&self) -> usize {
        self.thread
    }

    /// The queues that the thread serves.
    pub fn rings(&mut self) -> &mut [Ring] {
        &mut self.rings
    }

    /// One of its queues, with the way to memory. `None` if it is another thread's.
    pub fn ring(&mut self, queue: u16) -> Option<(&mut Ring, &mut IovaMemory<R>)> {
        let ring = self.rings.iter_mut().find(|r| r.index() == queue)?;
        Some((ring, &mut self.memory))
    }

    /// Its queues, with the way to memory: for devices that move data between them.
    pub fn split(&mut self) -> (&mut [Ring], &mut IovaMemory<R>) {
        (&mut self.rings, &mut self.memory)
    }

    /// Takes every chain that is available in a split ring, in batches: gives it to `each`, which
    /// returns how many bytes it wrote, puts it into the used ring, and notifies the driver as
    /// it wants to be.
    ///
    /// All buffers of a batch are translated ahead, and what is missing asked for at once. A chain
    /// that is interrupted (see [`Fault::Interrupted`](crate::guest_memory::Fault::Interrupted)) is
    /// given to `each` again from its start; so `each` should have no effect outside guest memory
    /// until it has read all it needs.
    ///
    /// # Errors
    /// Why the queue must stop, or that it was interrupted: to be returned to the runner, which
    /// calls again. A queue that is not live or not here has nothing available.
    pub fn each_chain(
        &mut self,
        queue: u16,
        mut each: impl for<'b, 'm> FnMut(
            &'b GuardedMemory<'m, R>,
            Chain<'b, 'm, R>,
        ) -> Result<u32, Stop>,
    ) -> Result<Next, Failure> {
        let Some(at) = self.rings.iter().position(|r| r.index() == queue) else {
            return Ok(Next::Wait);
        };
        if !self.rings[at].live || self.rings[at].is_packed() {
            return Ok(Next::Wait);
        }
        let failure = |why| Failure { queue, why };
        self.refresh(at).map_err(failure)?;
        // No more than a full ring a call: other queues and control requests have their turn,
        // whatever the driver adds meanwhile.
        let bursts = usize::from(self.rings[at].size).div_ceil(CHAINS_PER_BATCH);
        for _ in 0..bursts {
            let mut ready = self.look_ahead(at).map_err(failure)?;
            if ready == 0 {
                if !self.notify_me(at).map_err(failure)? {
                    return Ok(Next::Wait);
                }
                ready = self.look_ahead(at).map_err(failure)?;
            }
            self.one_batch(at, ready, &mut each).map_err(failure)?;
        }
        Ok(Next::Again)
    }

    /// Wants to be kicked from now on; says whether more came meanwhile.
    fn notify_me(&mut self, at: usize) -> Result<bool, Stop> {
        let guard = self.memory.pin();
        let more = self.rings[at].queue.enable_notification(&guard);
        checked(&guard, more)
    }

    /// Reads the used index of a ring that has just gone live: buffers that an earlier back
    /// end used stay used.
    fn refresh(&mut self, at: usize) -> Result<(), Stop> {
        let ring = &mut self.rings[at];
        if ring.fresh {
            let guard = self.memory.pin();
            let used = ring.queue.used_idx(&guard, Ordering::Relaxed);
            let used = checked(&guard, used)?;
            ring.queue.set_next_used(used.0);
            ring.fresh = false;
        }
        Ok(())
    }

    /// Checks the chains of the next batch and translates their buffers ahead; says how
    /// many chains these are.
    fn look_ahead(&mut self, at: usize) -> Result<usize, Stop> {
        self.wanted.clear();
        let size = usize::from(self.rings[at].size);
        let queue = &mut self.rings[at].queue;
        let next = queue.next_avail();
        let mut ready = 0;
        {
            let guard = self.memory.pin();
            let chains = queue.iter(&guard);
            let longest = LONGEST_CHAIN.max(size);
            for chain in checked(&guard, chains)?.take(CHAINS_PER_BATCH) {
                if self.wanted.len() >= BUFFERS_AHEAD {
                    break;
                }
                ready += 1;
                let head = chain.head_index();
                let (mut open, before) = (true, self.wanted.len());
                for descriptor in chain.take(longest + 1) {
                    open = descriptor.has_next();
                    let need = match descriptor.is_write_only() {
                        true => Perm::Write,
                        false => Perm::Read,
                    };
                    let (iova, len) = (
                        Iova(descriptor.addr().0),
                        ByteCount(descriptor.len().into()),
                    );
                    self.wanted.push((iova, len, need));
                }
                if let Some(fault) = guard.fault() {
                    queue.set_next_avail(next);
                    return Err(fault.into());
                }
                if open || self.wanted.len() - before > longest {
                    queue.set_next_avail(next);
                    return Err(Stop::Chain { head });
                }
            }
        }
        queue.set_next_avail(next);
        self.memory.pretranslate(self.wanted.iter().copied())?;
        Ok(ready)
    }

    /// Processes a batch of chains: those that were looked at ahead, and none that the driver has
    /// added since, which have not been checked.
    fn one_batch(
        &mut self,
        at: usize,
        ready: usize,
        each: &mut impl for<'b, 'm> FnMut(
            &'b GuardedMemory<'m, R>,
            Chain<'b, 'm, R>,
        ) -> Result<u32, Stop>,
    ) -> Result<(), Stop> {
        let ring = &mut self.rings[at];
        let mut used = 0;
        let guard = self.memory.pin();
        let mut result = Ok(());
        while used < ready && result.is_ok() {
            match one_chain(ring, &guard, each) {
                Ok(true) => used += 1,
                Ok(false) => break,
                Err(why) => result = Err(why),
            }
        }
        if used > 0 {
            let wants = ring.queue.needs_notification(&guard);
            let wants = checked(&guard, wants);
            result = result.and(wants.map(|wants| {
                if wants && let Err(e) = ring.notify() {
                    peer_log!(
                        Warn,
                        "queue {}: cannot notify the driver: {e}",
                        ring.index()
                    );
                }
            }));
        }
        result
    }
}

/// Takes one chain, has it processed, and puts it into the used ring: all of it, or nothing.
fn one_chain<'m, R: IotlbReader>(
    ring: &mut Ring,
    guard: &GuardedMemory<'m, R>,
    each: &mut impl for<'b, 'n> FnMut(&'b GuardedMemory<'n, R>, Chain<'b, 'n, R>) -> Result<u32, Stop>,
) -> Result<bool, Stop> {
    let (next_avail, next_used) = (ring.queue.next_avail(), ring.queue.next_used());
    let chain = ring.queue.iter(guard).map(|mut chains| chains.next());
    let Some(chain) = checked(guard, chain)? else {
        return Ok(false);
    };
    let head = chain.head_index();
    let written = each(guard, chain);
    let result = match guard.fault() {
        Some(fault) => Err(fault.into()),
        None => written.and_then(|written| {
            let added = ring.queue.add_used(guard, head, written);
            checked(guard, added)
        }),
    };
    if result.is_err() {
        ring.queue.set_next_avail(next_avail);
        ring.queue.set_next_used(next_used);
    }
    result.map(|()| true)
}

/// A result of the queue's; a fault of memory beneath it is the better reason.
fn checked<T, R: IotlbReader>(
    guard: &GuardedMemory<'_, R>,
    result: Result<T, virtio_queue::Error>,
) -> Result<T, Stop> {
    match guard.fault() {
        Some(fault) => Err(Stop::Fault(fault)),
        None => Ok(result?),
    }
}

impl<R> QueueWorker<R> {
    /// Whether memory was lost since it was last asked; costs a load while none ever was.
    pub(super) fn memory_is_gone(&self) -> bool {
        sigbus::deaths() > 0 && self.table.is_dead()
    }
}
