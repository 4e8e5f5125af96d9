// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The 64 bytes of a command and the 16 of a completion, as words: rings are words that two sides
//! use at once.

use super::{error::Status, prp::DataPointer, queue::QueueId};
use crate::window::Vector;
use ioatlas_dma::units::*;

/// Words of a command.
pub const COMMAND_WORDS: usize = 8;
/// Words of a completion.
pub const COMPLETION_WORDS: usize = 2;

/// The number of a command that is under way in its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandId(pub u16);

/// The number of a namespace, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NamespaceId(pub u32);

/// Number of a logical block, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Block(pub u64);

/// A number of logical blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BlockCount(pub u32);

/// A command, but for its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    opcode: u8,
    namespace: u32,
    data: DataPointer,
    /// Command dwords 10 to 15, in pairs.
    rest: [u64; 3],
}

/// What [`Command::identify`] is to describe (CNS).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identify {
    /// The controller itself (CNS 1).
    Controller,
    /// One namespace (CNS 0).
    Namespace(NamespaceId),
}

/// How the controller tells of a queue's completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// Not at all: the driver looks.
    Polled,
    /// By an interrupt of this vector.
    By(Vector),
}

impl Command {
    fn admin(opcode: u8, data: DataPointer, first: u64) -> Self {
        Command {
            opcode,
            namespace: 0,
            data,
            rest: [first, 0, 0],
        }
    }

    /// Describes `what` in 4096 bytes (§5.17).
    pub fn identify(what: Identify, data: DataPointer) -> Self {
        let (namespace, structure) = match what {
            Identify::Namespace(id) => (id.0, 0),
            Identify::Controller => (0, 1),
        };
        Command {
            namespace,
            ..Self::admin(0x06, data, structure)
        }
    }
    /// Asks for so many pairs of I/O queues (§5.27.1.5).
    pub fn want_queues(pairs: u16) -> Self {
        let most = u64::from(pairs.max(1) - 1);
        let (feature, value) = (0x07, most << 16 | most);
        Self::admin(0x09, DataPointer::NONE, feature | value << 32)
    }
    /// Reads the number of queues, which is not used: a command without effect. `note` stands in a
    /// field that this feature does not use, so a record of commands has it.
    pub fn note(note: u32) -> Self {
        Self::admin(0x0a, DataPointer::NONE, 0x07 | u64::from(note) << 32)
    }
    /// Makes a completion queue of `entries` at `at`, contiguous (§5.4).
    pub fn create_completion_queue(id: QueueId, entries: u32, at: Iova, told: Told) -> Self {
        let (vector, enabled) = match told {
            Told::Polled => (0, 0),
            Told::By(vector) => (u64::from(vector.0), 1 << 1),
        };
        let flags = vector << 16 | enabled | 1;
        let size = u64::from(entries - 1) << 16 | u64::from(id.0);
        Self::admin(0x05, DataPointer::page(at), size | flags << 32)
    }
    /// Makes a submission queue, whose answers go to the completion queue of
    /// the same number (§5.5).
    pub fn create_submission_queue(id: QueueId, entries: u32, at: Iova) -> Self {
        let size = u64::from(entries - 1) << 16 | u64::from(id.0);
        let flags = u64::from(id.0) << 16 | 1;
        Self::admin(0x01, DataPointer::page(at), size | flags << 32)
    }
    /// Ends a submission queue (§5.7).
    pub fn delete_submission_queue(id: QueueId) -> Self {
        Self::admin(0x00, DataPointer::NONE, u64::from(id.0))
    }
    /// Ends a completion queue, which no submission queue may use any more (§5.6).
    pub fn delete_completion_queue(id: QueueId) -> Self {
        Self::admin(0x04, DataPointer::NONE, u64::from(id.0))
    }
    /// Reads blocks (NVM command set §3.2.4).
    pub fn read(from: NamespaceId, first: Block, blocks: BlockCount, data: DataPointer) -> Self {
        Self::transfer(0x02, from, first, blocks, data)
    }
    /// Writes blocks (NVM command set §3.2.6).
    pub fn write(to: NamespaceId, first: Block, blocks: BlockCount, data: DataPointer) -> Self {
        Self::transfer(0x01, to, first, blocks, data)
    }
    fn transfer(
        opcode: u8,
        namespace: NamespaceId,
        first: Block,
        blocks: BlockCount,
        data: DataPointer,
    ) -> Self {
        Command {
            opcode,
            namespace: namespace.0,
            data,
            rest: [first.0, u64::from(blocks.0 - 1), 0],
        }
    }

    /// As the controller reads it (§3.3.3.1).
    pub fn words(&self, id: CommandId) -> [u64; COMMAND_WORDS] {
        let head = u64::from(self.opcode) | u64::from(id.0) << 16 | u64::from(self.namespace) << 32;
        let [first, second] = self.data.entries();
        let [a, b, c] = self.rest;
        [head, 0, 0, first.0, second.0, a, b, c]
    }
}

/// An entry of a completion queue (§3.3.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// What the command says of itself.
    pub result: u32,
    /// The command that it completes.
    pub id: CommandId,
    /// How it went, if not well.
    pub status: Option<Status>,
}

/// Which of two values the phase bit of new completions has; it changes with each turn of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// In the first turn, and every second one.
    One,
    /// In the turns between.
    Zero,
}

impl Phase {
    /// Of the next turn.
    pub fn next(self) -> Self {
        match self {
            Phase::One => Phase::Zero,
            Phase::Zero => Phase::One,
        }
    }
    /// Whether a completion with this last word is a new one.
    pub fn is_of(self, last: u64) -> bool {
        (last >> 48 & 1 == 1) == (self == Phase::One)
    }
}

impl Completion {
    /// From the words of an entry.
    pub fn from_words([first, last]: [u64; COMPLETION_WORDS]) -> Self {
        Completion {
            result: first as u32,
            id: CommandId((last >> 32) as u16),
            status: Status::from_field((last >> 49) as u16),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_laid_out_as_the_specification_says() {
        let data = DataPointer::page(Iova(0x1234_5000));
        let read = Command::read(NamespaceId(3), Block(0x1_0000_0002), BlockCount(8), data);
        let [head, _, _, prp1, prp2, block, count, _] = read.words(CommandId(0xbeef));
        assert_eq!(head, 0x0000_0003_beef_0002);
        assert_eq!((prp1, prp2), (0x1234_5000, 0));
        assert_eq!((block, count), (0x1_0000_0002, 7), "the count is one less");
    }

    #[test]
    fn queues_are_contiguous_and_of_one_entry_less() {
        let told = Told::By(Vector(5));
        let words = Command::create_completion_queue(QueueId(2), 64, Iova(0x1000), told);
        assert_eq!(words.words(CommandId(0))[5], 0x0005_0003_003f_0002);
        let words = Command::create_submission_queue(QueueId(2), 64, Iova(0x1000));
        assert_eq!(words.words(CommandId(0))[5], 0x0002_0001_003f_0002);
    }

    #[test]
    fn a_completion_says_which_and_how() {
        let done = Completion::from_words([7, 0x0001_002a_0000_0000]);
        assert_eq!(
            (done.id, done.result, done.status),
            (CommandId(42), 7, None)
        );
        assert!(Phase::One.is_of(0x0001_002a_0000_0000) && !Phase::Zero.is_of(1 << 48));
        let failed = Completion::from_words([0, 0x0004_0000_0000_0000 << 1 | 1 << 48]);
        assert!(failed.status.is_some());
    }
}
