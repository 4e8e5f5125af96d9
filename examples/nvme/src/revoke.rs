// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a device reaches after an unmap.
//!
//! The verdict is made of canaries: memory that must stay as it is. `edu` asks the unit at the end
//! of a transfer, so an unmap under way must be honoured, and is expected to be.
//!
//! QEMU's NVMe controller is *excluded by name* from that: it translates when a command begins and
//! writes to what it found when the command ends, so an unmap in between does not stop it, whatever
//! the unit does. [`late`] shows it. (A real device asks again for each transaction, or holds the
//! translation in a cache that an unmap invalidates.) A driver must wait for completions before it
//! unmaps; this one does.

use crate::{
    edu::{Edu, EduError},
    memory::{OWNER, lend},
    nvme::{NvmeError, command::*, namespace::Namespace, queue::QueuePair},
    pattern,
    policy::Policy,
    verify::VerifyError,
    window::{Idle, RegisterWindow},
};
use ioatlas_dma::{
    dma_api::{Client, DmaMapError, PoolError},
    domain::Domain,
    platform::Platform,
    translator::Translator,
    units::*,
};
use ioatlas_host::Host;
use serde::Serialize;
use std::{sync::Arc, time::Duration};

/// One transfer, and what it did to memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[allow(missing_docs)] // its fields say it
pub struct Revoked {
    pub case: &'static str,
    /// By which policy the page was mapped.
    pub policy: &'static str,
    /// Where the device wrote.
    pub iova: u64,
    /// Bytes of the page that changed.
    pub changed_bytes: u64,
    /// Attempts before this one that show nothing: the transfer was over before the unmap was,
    /// since this process had to wait.
    pub overtaken: u32,
    /// Whether the transfer was to be seen.
    pub lands: bool,
    /// Whether the unit must have blocked it. Where the page was copied, the device wrote to the
    /// copy's memory, which stays mapped.
    pub blocked: bool,
}

impl Revoked {
    /// Whether all is as it should be.
    pub fn is_good(&self) -> bool {
        (self.changed_bytes > 0) == self.lands
    }
}

/// Why it could not be found out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its variants say it
pub enum RevokeError {
    #[error(transparent)]
    Edu(#[from] EduError),
    #[error(transparent)]
    Nvme(#[from] NvmeError),
    /// There is no client.
    #[error(transparent)]
    NoPool(#[from] PoolError),
    /// There is no page for the transfers.
    #[error("no memory for a page")]
    NoMemory,
    /// No transfer was still under way when its unmap was over.
    #[error(
        "of {0} transfers none was under way still when its unmap was over: the machine is too busy to show what an unmap revokes"
    )]
    Overtaken(u32),
}

impl From<VerifyError> for RevokeError {
    fn from(error: VerifyError) -> Self {
        match error {
            VerifyError::Nvme(error) => error.into(),
            VerifyError::NoPool(error) => error.into(),
        }
    }
}

/// When the mapping ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    After,
    Before,
    Meanwhile,
}

/// Everything `edu` can show.
pub fn all<T: Translator<Host>, W: RegisterWindow>(
    edu: &Edu<W>,
    domain: &Arc<Domain<Host, T>>,
    mut each: impl FnMut(Revoked),
) -> Result<(), RevokeError> {
    for policy in Policy::ALL {
        let client = policy.client(domain)?;
        let direct = matches!(
            policy,
            Policy::MapUnmap | Policy::MapUnmapBursts | Policy::Untrusted | Policy::SingleUse
        );
        each(write(edu, policy, &client, When::After)?);
        match policy {
            Policy::Static => {} // never unmapped
            // nothing here maps again what was unmapped
            _ if direct => {
                each(write(edu, policy, &client, When::Before)?);
                each(write(edu, policy, &client, When::Meanwhile)?);
                each(write_protected(edu, policy, &client)?);
            }
            _ => each(write(edu, policy, &client, When::Meanwhile)?),
        }
    }
    Ok(())
}

const MOVED: ByteCount = ByteCount(2048);
/// `edu` takes a tenth of a second, an unmap far less. A process that was kept waiting so often has
/// no machine to test on.
const ATTEMPTS: u32 = 16;

fn write<T: Translator<Host>, W: RegisterWindow>(
    edu: &Edu<W>,
    policy: Policy,
    client: &Client<Host, T>,
    when: When,
) -> Result<Revoked, RevokeError> {
    for overtaken in 0..ATTEMPTS {
        if let Some(revoked) = write_once(edu, policy, client, when)? {
            return Ok(Revoked {
                overtaken,
                ..revoked
            });
        }
    }
    Err(RevokeError::Overtaken(ATTEMPTS))
}

/// Nothing where the transfer was not under way any more when the mapping ended: it may have landed
/// before, and what is planted then hides it.
fn write_once<T: Translator<Host>, W: RegisterWindow>(
    edu: &Edu<W>,
    policy: Policy,
    client: &Client<Host, T>,
    when: When,
) -> Result<Option<Revoked>, RevokeError> {
    let host = client.dma().domain().platform().clone();
    let frame = host.frame_alloc().ok_or(RevokeError::NoMemory)?;
    let page = PhysRange::page(frame.page());
    let plant = || pattern::plant(OWNER, &*host, 1, page).map_err(map_error);
    plant()?;
    let mapping = policy
        .map(client, &mut policy.stream(client), page)
        .map_err(NvmeError::from)?;
    let (iova, bounced) = (mapping.iova(), mapping.is_bounced());
    let mut mapping = Some(mapping);
    let mut end = || -> Result<(), NvmeError> {
        if policy == Policy::MapUnmapBursts {
            let unmapped = client.unmap_batch(&mut mapping.take().into_iter(), drop);
            unmapped.map_err(Box::new)?;
        } else if let Some(mapping) = mapping.take() {
            client.unmap(mapping)?;
        }
        Ok(())
    };
    if when == When::Before {
        end()?;
        plant()?;
    }
    let transfer = edu.begin_write(iova, MOVED)?;
    let mut shows = true;
    if when == When::Meanwhile {
        end()?;
        shows = !transfer.is_over();
        // a bounced buffer was copied back when it was unmapped
        plant()?;
    }
    transfer.wait()?;
    end()?;
    let changed = pattern::changed(OWNER, &*host, 1, page).map_err(map_error)?;
    host.frame_free(OWNER, frame);
    Ok(shows.then(|| Revoked {
        case: match when {
            When::After => "written while mapped",
            When::Before => "written after unmap",
            When::Meanwhile => "unmapped under way",
        },
        policy: policy.name(),
        iova: iova.0,
        changed_bytes: changed as u64,
        overtaken: 0,
        lands: when == When::After,
        blocked: when != When::After && !bounced,
    }))
}

/// A page that the device may read, written for the first time.
fn write_protected<T: Translator<Host>, W: RegisterWindow>(
    edu: &Edu<W>,
    policy: Policy,
    client: &Client<Host, T>,
) -> Result<Revoked, RevokeError> {
    let host = client.dma().domain().platform().clone();
    let frame = host.frame_alloc().ok_or(RevokeError::NoMemory)?;
    let page = PhysRange::page(frame.page());
    pattern::plant(OWNER, &*host, 2, page).map_err(map_error)?;
    let mapping = client
        .map_single(lend(page), Direction::ToDevice)
        .map_err(NvmeError::from)?;
    let iova = mapping.iova();
    edu.begin_write(iova, MOVED)?.wait()?;
    client.unmap(mapping).map_err(NvmeError::from)?;
    let changed = pattern::changed(OWNER, &*host, 2, page).map_err(map_error)?;
    host.frame_free(OWNER, frame);
    Ok(Revoked {
        case: "written though read-only",
        policy: policy.name(),
        iova: iova.0,
        changed_bytes: changed as u64,
        overtaken: 0,
        lands: false,
        blocked: true,
    })
}

fn map_error(error: ioatlas_dma::platform::NotMemoryError) -> RevokeError {
    NvmeError::from(DmaMapError::from(error)).into()
}

/// Unmaps while `reads` reads of a slow disk are under way, one at a time; returns how
/// many wrote afterwards. No verdict is made of it. The page is this function's until
/// each completion was seen.
pub fn late<T: Translator<Host>>(
    queue: &mut QueuePair,
    client: &Client<Host, T>,
    slow: &Namespace,
    reads: u32,
) -> Result<u32, RevokeError> {
    let host = client.dma().domain().platform().clone();
    let frame = host.frame_alloc().ok_or(RevokeError::NoMemory)?;
    let page = PhysRange::page(frame.page());
    let blocks = slow.blocks_of(page.len)?;
    let mut landed = 0;
    for _ in 0..reads {
        let mapping = client
            .map_single(lend(page), Direction::FromDevice)
            .map_err(NvmeError::from)?;
        queue.submit([(mapping.iova(), page.len)], |data| {
            Command::read(slow.id, Block(0), blocks, data)
        })?;
        queue.ring();
        std::thread::sleep(Duration::from_millis(5));
        client.unmap(mapping).map_err(NvmeError::from)?;
        pattern::plant(OWNER, &*host, 3, page).map_err(map_error)?;
        queue.wait(Idle::Nap(Duration::from_millis(1)))?;
        let changed = pattern::changed(OWNER, &*host, 3, page).map_err(map_error)?;
        landed += u32::from(changed > 0);
    }
    host.frame_free(OWNER, frame);
    Ok(landed)
}
