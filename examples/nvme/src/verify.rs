// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Does every policy bring what it should, by whatever way completions are told?

use crate::{
    load::{self, Buffers, Load, Seen},
    nvme::{NvmeError, command::*, controller::Controller, namespace::Namespace, queue::*, settle},
    pattern::Expected,
    policy::Policy,
    window::{Idle, Interrupts, Vector},
};
use ioatlas_dma::{
    dma_api::{Client, CpuBuffer, FromDevice, PoolError},
    domain::Domain,
    translator::Translator,
    units::*,
};
use ioatlas_host::Host;
use serde::Serialize;
use std::sync::Arc;

/// Reads under one policy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[allow(missing_docs)] // its fields say it
pub struct Verified {
    pub policy: &'static str,
    /// Bytes of a read.
    pub bytes: u64,
    /// Bytes before each buffer in its page.
    pub offset: u64,
    pub reads: u64,
    /// Bytes that are not those of the disk.
    pub wrong_bytes: u64,
    /// Bytes beside the buffers that have changed.
    pub changed_bytes: u64,
    /// Reads that the controller says have failed.
    pub failed: u64,
}

impl Verified {
    fn of(load: &Load<'_>, seen: Seen) -> Self {
        Verified {
            policy: load.policy.name(),
            bytes: load.size.0,
            offset: load.offset.0,
            reads: seen.reads,
            wrong_bytes: seen.wrong_bytes,
            changed_bytes: seen.changed_bytes,
            failed: seen.failed,
        }
    }
    /// Whether all is as it should be.
    pub fn is_good(&self) -> bool {
        self.wrong_bytes == 0 && self.changed_bytes == 0 && self.failed == 0 && self.reads > 0
    }
}

/// Why a check could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The driver gave up.
    #[error(transparent)]
    Nvme(#[from] NvmeError),
    /// There is no client.
    #[error(transparent)]
    NoPool(#[from] PoolError),
}

#[allow(clippy::too_many_arguments)] // each is another thing
/// Reads of `sizes`, in whole pages and not, by `policy`.
pub fn policy<T: Translator<Host>>(
    policy: Policy,
    domain: &Arc<Domain<Host, T>>,
    queue: &mut QueuePair,
    disk: &Namespace,
    buffers: &Buffers,
    idle: Idle,
    sizes: &[ByteCount],
    expected: &Expected,
) -> Result<Vec<Verified>, VerifyError> {
    let client = policy.client(domain)?;
    let mut all = Vec::new();
    for size in sizes {
        for offset in [ByteCount(0), ByteCount(512)] {
            let load = Load {
                policy,
                size: *size,
                depth: Depth(8),
                reads: 16,
                offset,
                check: Some(expected),
            };
            let seen = load::run(&load, queue, &client, disk, buffers, idle)?;
            all.push(Verified::of(&load, seen));
        }
    }
    Ok(all)
}

/// Sixteen reads told of by interrupts: how many bytes were wrong.
pub fn interrupts<T: Translator<Host>>(
    controller: &mut Controller<T>,
    client: &Client<Host, T>,
    disk: &Namespace,
    interrupts: &dyn Interrupts,
    vector: Vector,
    expected: &Expected,
) -> Result<u64, NvmeError> {
    let mut queue = controller.create_queue(Depth(4), Told::By(vector))?;
    let mut wrong = 0;
    let len = ByteCount(GRANULE);
    let blocks = disk.blocks_of(len)?;
    for read in 0..16 {
        let buffer: CpuBuffer<_, FromDevice> =
            client.buffer(len).ok_or(NvmeError::NoMemory(len))?;
        let lent = client.give(buffer)?;
        let first = Block(read * u64::from(blocks.0));
        let mut carry_out = || {
            queue.submit([(lent.iova(), len)], |data| {
                Command::read(disk.id, first, blocks, data)
            })?;
            queue.ring();
            let done = queue.wait_by(interrupts, vector)?;
            let command = "read";
            match done.status {
                None => Ok(()),
                Some(status) => Err(NvmeError::Command { command, status }),
            }
        };
        let done = carry_out();
        let buffer = settle(client, lent, done)?;
        let mut bytes = vec![0; len.0 as usize];
        buffer.read(ByteCount(0), &mut bytes)?;
        wrong += expected.wrong_bytes(&bytes, ByteCount(first.0 * disk.block.0)) as u64;
    }
    controller.delete_queue(queue)?;
    Ok(wrong)
}
