// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The address API of the DMA API, for interfaces that pass addresses in place of tokens: what it
//! costs should not depend on how many mappings there are.

use super::{Buffers, Tables, dma_api};
use crate::{
    Failure, Subject,
    platform::{Slots, lend},
};
use ioatlas_dma::{
    dma_api::{Client, ClientConfig, DmaConfig},
    units::*,
};
use ioatlas_host::Host;
use std::sync::Arc;

/// Direct mappings over real tables, under a unit that caches nothing. Pairs are `map_single` and
/// `into_raw`, and `unmap_raw`.
pub struct Addressed {
    client: Client<Host, Tables>,
}

impl Addressed {
    /// On `platform`, whose memory is not looked at.
    ///
    /// # Errors
    /// It is too small for a table.
    pub fn new(platform: Arc<Host>) -> Result<Self, Failure> {
        let dma = dma_api(platform, DmaConfig::default())?;
        let client = dma.client(ClientConfig::default()).map_err(Failure::new)?;
        Ok(Addressed { client })
    }
}

impl Subject for Addressed {
    type Token = (Iova, ByteCount);
    type Hand = Buffers;

    fn hand(&self, thread: usize) -> Buffers {
        self.client.dma().domain().platform().enter();
        Buffers::new(thread)
    }
    fn take(&self, hand: &mut Buffers, pages: PageCount) -> Result<Self::Token, Failure> {
        let len = ByteCount(pages.0 * GRANULE);
        let buffer = PhysRange::new(hand.next(pages).addr(), len);
        let mapped = self.client.map_single(lend(buffer), Direction::FromDevice);
        let raw = self.client.into_raw(mapped.map_err(Failure::new)?);
        raw.map_err(Failure::new)
    }
    fn give(&self, _: &mut Buffers, (iova, len): Self::Token) -> Result<(), Failure> {
        let ended = self.client.unmap_raw(iova, len, None);
        ended.map_err(Failure::new)
    }
}
