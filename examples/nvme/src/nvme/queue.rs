// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A pair of rings: commands go to the controller through the one, completions come back through
//! the other (§3.3).
//!
//! Both lie in *coherent* memory: arrays that are mapped for as long as the queue lives, and that
//! both sides use at any time. The CPU reads and writes entries, never by references to them.
//!
//! Each command that is under way has a page for its list of PRPs, which is mapped for as long,
//! too: describing data costs stores, and no mapping.
//!
//! Ordering: a command is written before the fence, and the doorbell is written after it. The word
//! of a completion that has the phase bit is read before the fence, and its other word after it. A
//! command's entry is free again when the command is complete: as at most `depth` are under way,
//! and the ring has one entry more, the tail never meets what was not read yet.

use super::{
    command::*,
    error::NvmeError,
    prp::{self, DataPointer},
    registers::*,
};
use crate::window::{Idle, Interrupts, RegisterWindow, TimedOut};
use ioatlas_dma::{
    dma_api::{Client, Coherent},
    domain::{MapError, UnmapError},
    translator::Translator,
    units::*,
};
use ioatlas_host::Host;
use std::{
    mem::ManuallyDrop,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
    time::Duration,
};

/// The number of a pair of queues; 0 is for administration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueId(pub u16);

/// How many commands may be under way at once. At least 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Depth(pub u16);

/// How long a completion may take. QEMU's takes microseconds, a disk at its worst seconds.
pub const COMPLETION_LIMIT: Duration = Duration::from_secs(60);
/// Words of a list of PRPs, which is a page.
const LIST_WORDS: usize = (GRANULE / 8) as usize;
/// Where a completion has its last word, which is the one with the phase bit.
const LAST_WORD: usize = 8 * (COMPLETION_WORDS - 1);

/// One pair. Dropping it leaves its memory mapped: the controller may still write there.
/// [`free`](Self::free) is for a caller that knows that it does not.
#[must_use = "end it with its controller's delete_queue"]
pub struct QueuePair {
    id: QueueId,
    window: Arc<dyn RegisterWindow>,
    memory: ManuallyDrop<Memory>,
    /// Entries of each of the two rings.
    entries: u32,
    submission_doorbell: u64,
    completion_doorbell: u64,
    tail: u32,
    head: u32,
    phase: Phase,
    free: Vec<CommandId>,
    /// Whether a command is under way, by its number.
    under_way: Vec<bool>,
}

/// What the controller reaches.
struct Memory {
    submission: Coherent<[[u64; COMMAND_WORDS]]>,
    completion: Coherent<[[u64; COMPLETION_WORDS]]>,
    /// A list of PRPs for each command.
    lists: Coherent<[[u64; LIST_WORDS]]>,
}

impl QueuePair {
    /// Memory for a pair; the controller has not heard of it yet.
    ///
    /// # Errors
    /// [`MapError`]; nothing stays mapped then.
    pub fn new<T: Translator<Host>>(
        client: &Client<Host, T>,
        window: Arc<dyn RegisterWindow>,
        capabilities: Capabilities,
        id: QueueId,
        depth: Depth,
    ) -> Result<Self, MapError> {
        let most = capabilities.queue_entries_max().clamp(2, 1 << 12);
        let entries = (u32::from(depth.0.max(1)) + 1).min(most);
        let memory = Memory {
            submission: client.alloc_coherent(entries as usize)?,
            completion: client.alloc_coherent(entries as usize)?,
            lists: client.alloc_coherent(entries as usize - 1)?,
        };
        Ok(QueuePair {
            id,
            memory: ManuallyDrop::new(memory),
            window,
            entries,
            submission_doorbell: capabilities.submission_doorbell(id),
            completion_doorbell: capabilities.completion_doorbell(id),
            tail: 0,
            head: 0,
            phase: Phase::One,
            free: (0..entries as u16 - 1).rev().map(CommandId).collect(),
            under_way: vec![false; entries as usize - 1],
        })
    }

    /// Its number, 0 for the admin pair.
    pub fn id(&self) -> QueueId {
        self.id
    }
    /// Entries of each ring.
    pub fn entries(&self) -> u32 {
        self.entries
    }
    /// Where the controller finds the commands.
    pub fn submission_at(&self) -> Iova {
        self.memory.submission.iova()
    }
    /// Where it is to put completions.
    pub fn completion_at(&self) -> Iova {
        self.memory.completion.iova()
    }
    /// Commands that are under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len() - self.free.len()
    }

    /// Writes a command whose data are `segments`; the controller does
    /// not look before [`ring`](Self::ring).
    ///
    /// # Errors
    /// [`NvmeError::Full`], and those of [`prp::describe`]; nothing was written to the ring then.
    pub fn submit(
        &mut self,
        segments: impl IntoIterator<Item = (Iova, ByteCount)>,
        command: impl FnOnce(DataPointer) -> Command,
    ) -> Result<CommandId, NvmeError> {
        let id = *self.free.last().ok_or(NvmeError::Full {
            queue: self.id,
            entries: self.entries - 1,
        })?;
        let Memory {
            submission, lists, ..
        } = &mut *self.memory;
        let list = usize::from(id.0);
        let data = prp::describe(segments, lists.iova_of(list), |index, entry| {
            lists.write_field(list, 8 * index, entry.0);
        })?;
        submission.write(self.tail as usize, command(data).words(id));
        self.free.pop();
        self.under_way[usize::from(id.0)] = true;
        self.tail = (self.tail + 1) % self.entries;
        Ok(id)
    }

    /// Tells the controller of the commands written since the last time.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        self.window.write32(self.submission_doorbell, self.tail);
    }

    /// How many completions are there to be polled, `most` at most. Looks only.
    pub fn completed(&self, most: usize) -> usize {
        let (mut head, mut phase) = (self.head, self.phase);
        for seen in 0..most {
            if !phase.is_of(self.last_word(head)) {
                return seen;
            }
            head += 1;
            if head == self.entries {
                (head, phase) = (0, phase.next());
            }
        }
        most
    }

    /// The next completion, if there is one. Its place in the ring is the
    /// controller's again after [`acknowledge`](Self::acknowledge).
    ///
    /// # Errors
    /// [`NvmeError::Stray`], if it is of no command under way.
    pub fn poll(&mut self) -> Result<Option<Completion>, NvmeError> {
        if !self.phase.is_of(self.last_word(self.head)) {
            return Ok(None);
        }
        fence(Ordering::Acquire);
        let done = Completion::from_words(self.memory.completion.read(self.head as usize));
        self.head += 1;
        if self.head == self.entries {
            (self.head, self.phase) = (0, self.phase.next());
        }
        match self.under_way.get_mut(usize::from(done.id.0)) {
            Some(under_way) if *under_way => *under_way = false,
            _ => {
                let (queue, id) = (self.id, done.id);
                return Err(NvmeError::Stray { queue, id });
            }
        }
        self.free.push(done.id);
        Ok(Some(done))
    }

    /// Gives the places of completions that were seen back to the controller.
    pub fn acknowledge(&self) {
        self.window.write32(self.completion_doorbell, self.head);
    }

    /// Waits for the next completion by looking.
    ///
    /// # Errors
    /// [`NvmeError::NoAnswer`] after [`COMPLETION_LIMIT`], or [`NvmeError::Stray`].
    pub fn wait(&mut self, idle: Idle) -> Result<Completion, NvmeError> {
        let found = idle.until(COMPLETION_LIMIT, || self.poll().transpose());
        let done = found.map_err(|TimedOut(waited)| NvmeError::NoAnswer {
            queue: self.id,
            waited,
        })??;
        self.acknowledge();
        Ok(done)
    }

    /// Waits for the completion of `id` by looking. Those of other commands, that were given up as
    /// unanswered, are not taken for it.
    pub fn wait_for(&mut self, id: CommandId, idle: Idle) -> Result<Completion, NvmeError> {
        loop {
            let done = self.wait(idle)?;
            if done.id == id {
                return Ok(done);
            }
        }
    }

    /// Waits for the next completion by its interrupt. The ring is looked at before each wait,
    /// since one interrupt may tell of several completions, and after it, since it may be about one
    /// that was seen already.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and [`NvmeError::Interrupt`].
    pub fn wait_by(
        &mut self,
        interrupts: &dyn Interrupts,
        vector: crate::window::Vector,
    ) -> Result<Completion, NvmeError> {
        loop {
            if let Some(done) = self.poll()? {
                self.acknowledge();
                return Ok(done);
            }
            if !interrupts.wait(vector, COMPLETION_LIMIT)? {
                return Err(NvmeError::NoAnswer {
                    queue: self.id,
                    waited: COMPLETION_LIMIT,
                });
            }
        }
    }

    fn last_word(&self, entry: u32) -> u64 {
        let completion = &self.memory.completion;
        completion.read_field(entry as usize, LAST_WORD)
    }

    /// Unmaps and frees its memory. The controller has forgotten the queue, or is disabled.
    ///
    /// # Errors
    /// [`UnmapError`]; what is left stays mapped.
    pub fn free(self) -> Result<(), UnmapError> {
        let memory = ManuallyDrop::into_inner(self.memory);
        // each, whatever comes of the others
        let ended = [
            memory.submission.free(),
            memory.completion.free(),
            memory.lists.free(),
        ];
        ended.into_iter().collect()
    }
}
