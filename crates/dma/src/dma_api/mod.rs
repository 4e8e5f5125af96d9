// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The DMA API: what a driver calls to let its device reach a buffer.
//!
//! # Theory
//!
//! A [`Dma`] belongs to one [`Domain`], and has its bounce pools. Each device has a [`Client`] of
//! it, which says how its mappings are to be placed ([`Placement`]), and which addresses it can
//! reach. All clients of a `Dma` share its pools, as their devices share its domain.
//!
//! ```text
//! map(list, direction)                                    unmap(mapping)
//!   placement: direct or bounce? (the only place that decides)
//!     direct: Domain::map                                   Domain::unmap
//!     bounce: take a slot -> copy in, zero what must be     copy back -> clear -> slot returns
//!   -> DmaMapping { iova, len, .. }  (one type)             consumes it, gives the list back
//! ```
//!
//! What is mapped is memory whose owner has promised that a device may reach it: a [`DmaBuffer`],
//! or addresses that were [lent](Lent), by value or by whatever holds them (`&[PhysRange]`, `Vec`,
//! `Arc<[_]>`; a [`PhysRange`](crate::units::PhysRange) is a list of one). It goes into the
//! mapping, so mapping allocates nothing for it, and unmapping cannot be given another. It comes
//! back from an unmap that succeeded, and is dropped neither with a token nor after an invalidation
//! that failed: the device may reach the memory then.
//!
//! # What the CPU sees
//!
//! * [`ToDevice`](crate::units::Direction::ToDevice): the device sees the bytes as they were at
//!   map, or at the last [`Client::sync_for_device`]. Nothing is copied back.
//! * [`FromDevice`](crate::units::Direction::FromDevice): after unmap, or [`Client::sync_for_cpu`],
//!   a byte of the buffer is what the device wrote. *Bytes that the device did not write come back
//!   as they were where mapped directly, and as zero where bounced*; never as an earlier user's.
//! * [`Bidirectional`](crate::units::Direction::Bidirectional): both; bytes that the device did not
//!   write come back as they were.
//! * After unmap the device cannot change the bytes any more: TOCTOU rewrites end there. (Mapped
//!   directly, under a deferred invalidation policy, they end with its
//!   [exposure](crate::policy::PolicyConfig::exposure).) Where they were bounced the *slot* stays
//!   mapped after unmap, whatever the policy: P1 (no access succeeds after a strict unmap) is then
//!   true of the buffer, and not of the IOVA, at which the device reaches the slot and what it is
//!   used for next.
//!
//! # Example
//!
//! ```
//! use ioatlas_dma::{dma_api::*, domain::*, platform::*, translator::Uncached, units::*};
//! use ioatlas_host::*;
//! # use ioatlas_dma::translator::{TableConfig, VtdSecond48};
//! # use ioatlas_dma::translator::Paged;
//! # use std::sync::Arc;
//! let p = Arc::new(Host::new(HostConfig::default().frames(64)));
//! # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
//! # let buffer = PhysRange::new(p.frame_alloc().unwrap().page().addr(), ByteCount(100));
//! let domain = Arc::new(Domain::new(p.clone(), table, DomainConfig::default())?);
//! let dma = Arc::new(Dma::new(domain, DmaConfig::default()));
//! let nic = dma.client(ClientConfig::default().placement(Placement::Always))?;
//!
//! // SAFETY: the buffer is ours, and until the unmap the device's; nothing else looks at it.
//! let (by, lent) = unsafe { (Authority::assume(), Lent::new(buffer)) };
//! p.write(by, b"hello", buffer.addr)?;
//! let mapping = nic.map_single(lent, Direction::ToDevice)?;
//! // ... tell the device mapping.iova() and mapping.len(), wait until it is done ...
//! nic.unmap(mapping)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Locking
//!
//! None of its own on the way of a kept slot; see `bounce`. Everything but [`Dma::new`]
//! and [`Dma::client`] may be called in an interrupt handler, except that what falls back on fresh
//! memory allocates.
//!
//! # Not handled
//!
//! CPU caches that are not coherent with devices; memory encryption.

mod any;
mod buffer;
mod client;
mod coherent;
mod config;
mod dma_buffer;
mod error;
mod map;
mod mapped;
mod mapping;
mod pending;
mod place;
mod pools;
mod raw;
mod raw_arrays;
mod raw_buffers;
mod raw_table;
mod shares;
mod slice;
mod stream;
mod sync;
mod unmap;
mod unmap_batch;
mod watch;

pub use crate::bounce::{
    BounceError, CHUNK_PAGES, CHUNKS_MAX, ClassConfig, Clock, Growth, PoolConfig, PoolConfigError,
    PoolError, SLOT_PAGES_LG2_MAX, SLOTS_MAX, SingleUse, Span,
};
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use crate::bounce::{ChunkUsage, Lack, Learned, PoolUsage, Route, SlotUsage, Step, StepCounts};
pub use crate::domain::{Lent, Limits};
pub use any::AnyClient;
pub use buffer::{
    BothWays, CpuBuffer, CpuView, DeviceBuffer, DeviceReads, DeviceWrites, FromDevice, ToDevice,
    Way,
};
pub use client::Client;
pub use coherent::Coherent;
pub use config::{ClientConfig, DmaAttrs, DmaConfig, LowBits, Placement, Streaming};
pub use dma_buffer::DmaBuffer;
pub use error::{DmaMapError, DmaUnmapBatchError, DmaUnmapError, SyncError};
pub use mapped::{Mapped, OnDropError};
pub use mapping::DmaMapping;
pub use pending::DmaPendingUnmap;
pub use raw::{IntoRawError, RawDmaError, RawList, SyncFor};
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use shares::{Shares, SharesConfig};
pub use slice::{MappedCopy, MappedSlice};
pub use stream::Stream;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use watch::{Event, Finding, Flush, Mistake, Off, Past, Recorder, Story, Watch};

use crate::{
    bounce::Pool,
    domain::Domain,
    platform::*,
    translator::Translator,
    units::{ByteCount, TimeNs},
};
use alloc::{string::String, sync::Arc, vec::Vec};
use core::fmt;
use pools::Pools;
use raw_arrays::Arrays;
use raw_table::RawTable;

/// The bounce pools of one domain, and what its clients share. See the module's theory.
pub struct Dma<P: CopyMemory, T: Translator<P>, D = Off> {
    domain: Arc<Domain<P, T>>,
    config: DmaConfig,
    pools: Pools<P>,
    raw: RawTable<P>,
    arrays: Arrays<P>,
    watch: D,
    clients: P::A64,
    drop_errors: P::A64,
    /// Tells its mappings from those of others.
    key: u64,
}

impl<P: CopyMemory, T: Translator<P>> Dma<P, T> {
    /// No pool yet; none is made before a client needs one.
    pub fn new(domain: Arc<Domain<P, T>>, config: DmaConfig) -> Self {
        Dma::watched(domain, config, Off)
    }
}

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Dma<P, T, D> {
    /// The same with everything that its clients do told to `watch`, most often a [`Recorder`].
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn watched(domain: Arc<Domain<P, T>>, config: DmaConfig, watch: D) -> Self {
        Dma {
            key: domain.platform().unique(),
            domain,
            config,
            pools: Pools::new(),
            raw: RawTable::new(),
            arrays: Arrays::new(),
            watch,
            clients: P::A64::new(0),
            drop_errors: P::A64::new(0),
        }
    }

    /// What is told of every operation.
    pub fn watch(&self) -> &D {
        &self.watch
    }

    /// Unmaps that have failed where a [`Mapped`], a [`MappedSlice`] or a [`Coherent`] array was
    /// dropped.
    pub fn drop_errors(&self) -> u64 {
        self.drop_errors.load(Ordering::Relaxed)
    }

    #[cold]
    fn failed_on_drop(&self, error: &dyn fmt::Display) {
        self.drop_errors.fetch_add(1, Ordering::Relaxed);
        if let Some(told) = self.config.on_drop_error {
            (told.0)(error);
        }
    }

    /// Where its mappings live.
    pub fn domain(&self) -> &Arc<Domain<P, T>> {
        &self.domain
    }

    /// Lets a device map. The pool for its address limits is made now, if its placement may ever
    /// bounce and no client before had the same.
    ///
    /// # Errors
    /// [`PoolError`], if the placement needs a clock and there is none, or no pool can be made.
    pub fn client(self: &Arc<Self>, config: ClientConfig) -> Result<Client<P, T, D>, PoolError> {
        self.check(&config)?;
        let pool = match config.placement {
            Placement::Never => None,
            _ => Some(
                self.pools
                    .anyones(&self.domain, &self.config.pool, config.limits)?,
            ),
        };
        Ok(Client::new(self.clone(), config, pool))
    }

    fn check(&self, config: &ClientConfig) -> Result<(), PoolError> {
        match (config.placement, self.config.clock) {
            (Placement::Adaptive, None) => Err(PoolError::NoClock),
            _ => Ok(()),
        }
    }

    /// What [`Placement::Adaptive`] has learned, of each pool, size and direction that
    /// it was used for.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn learned(&self) -> Vec<Learned> {
        let mut all = Vec::new();
        self.pools.each(|pool| all.extend(pool.model.learned()));
        all
    }

    /// The same with a pool of its own, so that no other device's traffic can take what this one
    /// needs. With [`Growth::Fixed`] all of it is there from the beginning.
    ///
    /// # Errors
    /// [`PoolError`], if the placement needs a clock and there is none, or the pool cannot be made.
    pub fn client_with_pool(
        self: &Arc<Self>,
        config: ClientConfig,
        pool: &PoolConfig,
    ) -> Result<Client<P, T, D>, PoolError> {
        self.check(&config)?;
        let pool = self.pools.ones(&self.domain, pool, config.limits, None)?;
        Ok(Client::new(self.clone(), config, Some(pool)))
    }
}

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Dma<P, T, D> {
    /// The host's timer calls this, as it calls [`Domain::tick`]: slots and chunks that no
    /// request asked for in [`PoolConfig::idle_ns`] lose their memory, a bounded number of
    /// them in one call.
    pub fn tick(&self, now: TimeNs) {
        self.pools.each(|pool| pool.tick(&self.domain, now));
    }

    /// Mappings that were given up to the address API and not unmapped yet.
    pub fn raw_mappings(&self) -> usize {
        self.raw.len()
    }

    /// What each pool has and did.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn usage(&self) -> Vec<PoolUsage> {
        let mut all = Vec::new();
        self.pools.each(|pool| all.push(pool.usage()));
        all
    }

    /// Checks every pool (P10). Nothing else may use the pools meanwhile.
    ///
    /// # Errors
    /// A sentence that names what is wrong.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn audit(&self) -> Result<Vec<PoolUsage>, String> {
        let mut all = Ok(Vec::new());
        self.pools.each(|pool| {
            let audit = pool.audit();
            all = core::mem::replace(&mut all, Ok(Vec::new())).and_then(|mut all| {
                all.push(audit?);
                Ok(all)
            });
        });
        all
    }
}

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> fmt::Display for Dma<P, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, pool) in self.usage().iter().enumerate() {
            writeln!(
                f,
                "bounce pool {nth}: {} KiB of memory, {} KiB of bookkeeping; {}",
                pool.memory.0 >> 10,
                pool.metadata.0 >> 10,
                pool.steps
            )?;
            for (bytes, slots) in &pool.classes {
                writeln!(
                    f,
                    "  slots of {} KiB: {} taken, {} kept, {} empty, {} lost",
                    bytes.0 >> 10,
                    slots.taken,
                    slots.kept,
                    slots.empty,
                    slots.lost
                )?;
            }
            let chunks = pool.chunks;
            writeln!(
                f,
                "  {} chunks: {} pages taken, {} kept; {} chunks lost",
                chunks.chunks, chunks.taken, chunks.kept, chunks.lost
            )?;
        }
        Ok(())
    }
}

impl<P: CopyMemory, T: Translator<P>, D> Drop for Dma<P, T, D> {
    /// Ends the pools: every slot is unmapped and flushed, also those of mappings that are still
    /// alive, whose devices reach nothing any more. So do arrays that were never freed.
    fn drop(&mut self) {
        self.pools.close(&self.domain);
        self.arrays.close(&self.domain);
    }
}
