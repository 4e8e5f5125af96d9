// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Streams: what a queue maps goes to addresses next to each other.
//!
//! A driver that knows nothing of chunks has one stream for each of its queues, and maps by it what
//! it mapped before. Direct mappings become pieces of the stream's chunk, in the order in which
//! they are mapped; where the next does not fit, the chunk is ended, to be free with its last
//! piece, and another begun. Mappings end as ever, by this client: one by one, in batches, in any
//! order, on any CPU; in the order in which they were mapped is cheapest, as then few ranges are
//! invalidated.
//!
//! Nothing is mapped worse for it: what bounces goes its usual way, and so does what is larger than
//! a chunk, or finds no place for one.
//!
//! Locking: none. A stream has one owner (`&mut`), as a queue has; queues that several CPUs fill
//! have a lock already, inside of which the stream belongs.

use super::*;
use crate::{
    domain::{MapAttrs, MapError, Mapping, OpenChunk},
    units::*,
};

/// How what is not bounced is mapped.
pub(super) trait MapsDirect<P: Platform, T: Translator<P>> {
    fn map_direct(
        &mut self,
        domain: &Domain<P, T>,
        list: &[PhysRange],
        direction: Direction,
        attrs: MapAttrs,
    ) -> Result<Mapping, MapError>;
}

/// Each by itself.
pub(super) struct OneByOne;

impl<P: Platform, T: Translator<P>> MapsDirect<P, T> for OneByOne {
    #[inline]
    fn map_direct(
        &mut self,
        domain: &Domain<P, T>,
        list: &[PhysRange],
        direction: Direction,
        attrs: MapAttrs,
    ) -> Result<Mapping, MapError> {
        match list {
            [buffer] => domain.map_with(Lent::ours(*buffer), direction, attrs),
            list => domain.map_list_with(Lent::ours(list), direction, attrs),
        }
    }
}

/// What a queue maps by it gets addresses next to each other: see [`Client::stream`].
///
/// Dropping it ends its chunk; what is mapped by it lives on.
pub struct Stream<P: CopyMemory, T: Translator<P>> {
    domain: Arc<Domain<P, T>>,
    chunk: Option<OpenChunk>,
    pages: PageCount,
}

impl<P: CopyMemory, T: Translator<P>> Stream<P, T> {
    /// By the chunk that is open.
    #[inline]
    fn next_piece(
        &mut self,
        domain: &Domain<P, T>,
        list: &[PhysRange],
        direction: Direction,
    ) -> Result<Mapping, MapError> {
        let chunk = self.chunk.as_mut().ok_or(MapError::NoChunk)?;
        domain.map_in(chunk, list, direction)
    }

    fn end(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            self.domain.end_chunk(&chunk);
        }
    }
}

impl<P: CopyMemory, T: Translator<P>> Drop for Stream<P, T> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<P: CopyMemory, T: Translator<P>> MapsDirect<P, T> for &mut Stream<P, T> {
    #[inline]
    fn map_direct(
        &mut self,
        domain: &Domain<P, T>,
        list: &[PhysRange],
        direction: Direction,
        attrs: MapAttrs,
    ) -> Result<Mapping, MapError> {
        if self.chunk.is_some() {
            match self.next_piece(domain, list, direction) {
                Err(MapError::ChunkFull { wanted, .. }) if wanted <= self.pages => self.end(),
                Err(MapError::ChunkFull { .. } | MapError::ForeignChunk) => {
                    return OneByOne.map_direct(domain, list, direction, attrs);
                }
                mapped => return mapped,
            }
        }
        let mapped = match self.domain.open_chunk(self.pages, attrs) {
            Ok(chunk) => {
                self.chunk = Some(chunk);
                self.next_piece(domain, list, direction)
            }
            Err(error @ MapError::Invalidate(_)) => return Err(error),
            Err(_) => Err(MapError::NoChunk),
        };
        match mapped {
            Err(MapError::NoChunk | MapError::ChunkFull { .. } | MapError::ForeignChunk) => {
                OneByOne.map_direct(domain, list, direction, attrs)
            }
            mapped => mapped,
        }
    }
}

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Client<P, T, D> {
    /// A stream with chunks of `pages` pages (see [`Domain::chunk`]; 32 or 64 suit most), for one
    /// queue of the device. Nothing is allocated before the first map.
    ///
    /// ```
    /// # use ioatlas_dma::{dma_api::*, domain::*, platform::*, translator::{Paged, Uncached}, units::*};
    /// # use ioatlas_dma::translator::{TableConfig, VtdSecond48};
    /// # use ioatlas_host::*;
    /// # use std::{collections::VecDeque, sync::Arc};
    /// # let p = Arc::new(Host::new(HostConfig::default().frames(64)));
    /// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
    /// # let domain = Arc::new(Domain::new(p.clone(), table, DomainConfig::default())?);
    /// # let dma = Arc::new(Dma::new(domain, DmaConfig::default()));
    /// # let nic = dma.client(ClientConfig::default().placement(Placement::Never))?;
    /// # let buffer = |nth: u64| unsafe { Lent::new(PhysRange::page(PhysPage(0x100 + 3 * nth))) };
    /// let mut rx = nic.stream(PageCount(64)); // one line ..
    /// let mut ring = VecDeque::new();
    /// for nth in 0..256 {
    ///     ring.push_back(nic.map_in(&mut rx, buffer(nth), Direction::FromDevice)?); // .. and another
    /// }
    /// nic.unmap_batch(&mut ring.drain(..32), drop).expect("the unit answers");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stream(&self, pages: PageCount) -> Stream<P, T> {
        Stream {
            domain: self.dma().domain().clone(),
            chunk: None,
            pages,
        }
    }

    /// Maps a list, or one buffer, as [`map_sg`](Self::map_sg) does; directly, by the next
    /// addresses of `stream`. (By a stream of another domain it is mapped all the same, but for
    /// the addresses.)
    ///
    /// A queue whose commands complete in any order:
    ///
    /// ```
    /// # use ioatlas_dma::{dma_api::*, domain::*, platform::*, translator::{Paged, Uncached}, units::*};
    /// # use ioatlas_dma::translator::{TableConfig, VtdSecond48};
    /// # use ioatlas_host::*;
    /// # use std::sync::Arc;
    /// # let p = Arc::new(Host::new(HostConfig::default().frames(64)));
    /// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
    /// # let domain = Arc::new(Domain::new(p.clone(), table, DomainConfig::default())?);
    /// # let dma = Arc::new(Dma::new(domain, DmaConfig::default()));
    /// # let disk = dma.client(ClientConfig::default().placement(Placement::Never))?;
    /// # let list = |nth: u64| [0x100 + 4 * nth, 0x102 + 4 * nth].map(|at| PhysRange::page(PhysPage(at)));
    /// # let list = |nth: u64| unsafe { Lent::new(list(nth)) };
    /// let mut queue = disk.stream(PageCount(64)); // one line ..
    /// let mut commands = Vec::new();
    /// for tag in 0..128 {
    ///     let command = disk.map_in(&mut queue, list(tag), Direction::ToDevice)?; // .. and another
    ///     assert_eq!(command.segments().count(), 2);
    ///     commands.push(Some(command));
    /// }
    /// // one interrupt: what has completed, whichever it is
    /// let completed = [17, 3, 16, 18, 2];
    /// let mut ended = completed.iter().filter_map(|tag| commands[*tag].take());
    /// disk.unmap_batch(&mut ended, drop).expect("the unit answers");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DmaMapError`]; nothing is mapped then.
    #[inline]
    pub fn map_in<L: DmaBuffer>(
        &self,
        stream: &mut Stream<P, T>,
        list: L,
        direction: Direction,
    ) -> Result<DmaMapping<L>, DmaMapError> {
        self.map_by(stream, list, direction, DmaAttrs::default())
    }
}
