// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A chunk whose maps are reported to the oracle. Its pieces are mappings as any others.

use super::Watched;
use ioatlas_dma::{
    domain::{Chunk, MapError, Mapping},
    platform::{DedicatedMemory, Platform},
    translator::Translator,
    units::*,
};

/// `Chunk`, watched.
pub struct WatchedChunk<'w, P: Platform, T: Translator<P>> {
    watched: &'w Watched<P, T>,
    chunk: Chunk<'w, P, T>,
}

impl<P: Platform, T: Translator<P>> Watched<P, T> {
    /// [`Domain::chunk`](ioatlas_dma::domain::Domain::chunk). Nothing is mapped by it.
    ///
    /// # Errors
    /// Those of [`Domain::chunk`](ioatlas_dma::domain::Domain::chunk), unchanged.
    pub fn chunk(&self, pages: PageCount) -> Result<WatchedChunk<'_, P, T>, MapError> {
        let chunk = self.domain.chunk(pages)?;
        Ok(WatchedChunk {
            watched: self,
            chunk,
        })
    }
}

impl<'w, P: Platform, T: Translator<P>> WatchedChunk<'w, P, T> {
    /// The chunk itself, to be looked at.
    pub fn chunk(&self) -> &Chunk<'w, P, T> {
        &self.chunk
    }
}

impl<P: DedicatedMemory, T: Translator<P>> WatchedChunk<'_, P, T> {
    /// [`Chunk::map`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Chunk::map`], unchanged.
    pub fn map(&mut self, buffer: PhysRange, direction: Direction) -> Result<Mapping, MapError> {
        let chunk = &mut self.chunk;
        let call = |_: &_| chunk.map(buffer, direction);
        self.watched.mapping(&[buffer], direction, call)
    }

    /// [`Chunk::map_list`], reported to the oracle.
    ///
    /// # Errors
    /// Those of [`Chunk::map_list`], unchanged.
    pub fn map_list(
        &mut self,
        list: &[PhysRange],
        direction: Direction,
    ) -> Result<Mapping, MapError> {
        let chunk = &mut self.chunk;
        let call = |_: &_| chunk.map_list(list, direction);
        self.watched.mapping(list, direction, call)
    }
}
