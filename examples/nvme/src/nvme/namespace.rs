// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Blocks: the whole DMA API in one function.
//!
//! A buffer's owner is in its type. [`Namespace::read`] takes a buffer that is the CPU's, *gives*
//! it to the device, which maps or bounces it as the client's policy says, waits for the
//! completion, and *takes it back*: from then on the device cannot change what was read. In between
//! no code can look at the bytes, since there is no view of them.
//!
//! Where a command is not answered, the device may still have the buffer; then it is dropped as the
//! device's, which leaves it mapped and its memory unused: the safe way out is the one that costs
//! nothing to write. A command that was answered, though by an error, is over, and its buffer's
//! memory is freed ([`settle`]).

use super::{
    command::*, controller::Controller, error::NvmeError, lent::settle, prp::DataPointer,
    queue::QueuePair,
};
use crate::window::Idle;
use ioatlas_dma::{
    dma_api::{Client, CpuBuffer, DeviceBuffer, FromDevice, ToDevice, Way},
    translator::Translator,
    units::*,
};
use ioatlas_host::Host;

/// A disk of a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct Namespace {
    pub id: NamespaceId,
    /// How many blocks it has.
    pub blocks: u64,
    /// How large they are.
    pub block: ByteCount,
    /// The most that one command may transfer.
    pub transfer_max: ByteCount,
}

impl Namespace {
    /// Asks the controller for it.
    ///
    /// # Errors
    /// [`NvmeError::NoNamespace`] and the others.
    pub fn open<T: Translator<Host>>(
        controller: &mut Controller<T>,
        client: &Client<Host, T>,
        id: NamespaceId,
    ) -> Result<Self, NvmeError> {
        if !(1..=controller.about().namespaces).contains(&id.0) {
            return Err(NvmeError::NoNamespace(id));
        }
        let page = controller.identify(client, Identify::Namespace(id))?;
        let (mut blocks, mut format, mut descriptor) = ([0; 8], [0], [0; 4]);
        page.read(ByteCount(0), &mut blocks)?;
        page.read(ByteCount(26), &mut format)?;
        let at = 128 + 4 * u64::from(format[0] & 0xf);
        page.read(ByteCount(at), &mut descriptor)?;
        let blocks = u64::from_le_bytes(blocks);
        let lg2 = u32::from(descriptor[2]);
        if blocks == 0 {
            return Err(NvmeError::NoNamespace(id));
        }
        if !(9..=GRANULE_LG2).contains(&lg2) {
            return Err(NvmeError::Blocks { namespace: id, lg2 });
        }
        Ok(Namespace {
            id,
            // no more than there are numbers for their bytes, whatever it says
            blocks: blocks.min(u64::MAX >> lg2),
            block: ByteCount(1 << lg2),
            transfer_max: controller.about().transfer_max,
        })
    }

    /// Its size in bytes, all blocks together.
    pub fn len(&self) -> ByteCount {
        ByteCount(self.blocks * self.block.0)
    }
    /// Never: it has blocks.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// How many blocks `len` is.
    ///
    /// # Errors
    /// [`NvmeError::NotBlocks`] (also of none), or [`NvmeError::TooLong`] for one command.
    pub fn blocks_of(&self, len: ByteCount) -> Result<BlockCount, NvmeError> {
        if len.0 == 0 || !len.0.is_multiple_of(self.block.0) {
            let block = self.block;
            return Err(NvmeError::NotBlocks { len, block });
        }
        if len > self.transfer_max {
            let most = self.transfer_max;
            return Err(NvmeError::TooLong { len, most });
        }
        Ok(BlockCount((len.0 / self.block.0) as u32))
    }

    /// Fills `buffer` with what lies from block `first` on. Nothing else in `queue` is waited for.
    ///
    /// # Errors
    /// [`NvmeError`]; the buffer is gone: see [`settle`] for its memory.
    pub fn read<T: Translator<Host>>(
        &self,
        queue: &mut QueuePair,
        client: &Client<Host, T>,
        first: Block,
        buffer: CpuBuffer<Host, FromDevice>,
    ) -> Result<CpuBuffer<Host, FromDevice>, NvmeError> {
        let blocks = self.blocks_of(buffer.len())?;
        let lent = client.give(buffer)?;
        let read = |data| Command::read(self.id, first, blocks, data);
        let done = carry_out(queue, &lent, read, "read");
        settle(client, lent, done)
    }

    /// Writes `buffer` to block `first` and those after it. Destroys what was there. Nothing else
    /// in `queue` is waited for.
    ///
    /// # Errors
    /// [`NvmeError`]; the buffer is gone: see [`settle`] for its memory.
    pub fn write<T: Translator<Host>>(
        &self,
        queue: &mut QueuePair,
        client: &Client<Host, T>,
        first: Block,
        buffer: CpuBuffer<Host, ToDevice>,
    ) -> Result<CpuBuffer<Host, ToDevice>, NvmeError> {
        let blocks = self.blocks_of(buffer.len())?;
        let lent = client.give(buffer)?;
        let write = |data| Command::write(self.id, first, blocks, data);
        let done = carry_out(queue, &lent, write, "write");
        settle(client, lent, done)
    }
}

/// Gives the controller a command whose data are `lent`, and waits for its end.
fn carry_out<W: Way>(
    queue: &mut QueuePair,
    lent: &DeviceBuffer<Host, W>,
    command: impl FnOnce(DataPointer) -> Command,
    name: &'static str,
) -> Result<(), NvmeError> {
    let id = queue.submit(pages_of(lent), command)?;
    queue.ring();
    let done = queue.wait_for(id, Idle::Nap(std::time::Duration::from_micros(20)))?;
    match done.status {
        None => Ok(()),
        Some(status) => Err(NvmeError::Command {
            command: name,
            status,
        }),
    }
}

/// Where the device finds each page of a buffer, and how much of it.
fn pages_of<W: Way>(buffer: &DeviceBuffer<Host, W>) -> impl Iterator<Item = (Iova, ByteCount)> {
    let len = buffer.len().0;
    buffer.segments().enumerate().map(move |(page, at)| {
        let before = page as u64 * GRANULE;
        (at, ByteCount((len - before).min(GRANULE)))
    })
}
