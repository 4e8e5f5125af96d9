// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The buffers of one direction: where each is, which are free, and how the device may call them.

use crate::{
    config::{Config, Mapping, Placement},
    ram::Ram,
    space::{Slot, Space, Way},
};
use ioatlas_dma::units::*;
use std::collections::VecDeque;

/// Buffers begin at a cache line.
const LINE: usize = 64;
/// How far before the end of a page one begins that straddles it.
const STRADDLES: usize = 32;

/// A buffer, as its place in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Static mappings: what the device calls its first byte.
    device: Iova,
    /// Where its first byte is.
    first: usize,
    /// Bytes in that page, or all.
    in_first: usize,
    /// Where the rest is.
    second: usize,
}

impl Place {
    /// Writes bytes from `at` on.
    #[inline]
    pub(crate) fn write(&self, ram: &Ram, at: usize, bytes: &[u8]) {
        let (here, there) = bytes.split_at(self.in_first.saturating_sub(at).min(bytes.len()));
        if !here.is_empty() {
            ram.write(self.first + at, here);
        }
        if !there.is_empty() {
            ram.write(self.second + (at + here.len() - self.in_first), there);
        }
    }

    /// Reads bytes from the start on.
    #[inline]
    pub(crate) fn read(&self, ram: &Ram, bytes: &mut [u8]) {
        let (here, there) = bytes.split_at_mut(self.in_first.min(bytes.len()));
        ram.read(self.first, here);
        if !there.is_empty() {
            ram.read(self.second, there);
        }
    }
}

/// The buffers of one direction.
pub(crate) struct Pool {
    places: Vec<Place>,
    /// The one that was used longest ago is first.
    free: VecDeque<u32>,
    dynamic: bool,
    /// Pages that a buffer touches.
    pages: u32,
    next_slot: Slot,
    way: Way,
    /// By buffer: its slot, where mappings are dynamic.
    slots: Vec<Slot>,
}

impl Pool {
    pub(crate) fn new(space: &Space, config: &Config, way: Way) -> Self {
        let page = GRANULE as usize;
        let in_page = |number: u32, within: usize| {
            let planned = space.planned(way, number) + within as u64;
            let first = space.offset(planned);
            Place {
                device: space.device_addr(planned),
                first,
                in_first: usize::MAX,
                second: first,
            }
        };
        let stride = config.buffer_bytes().next_multiple_of(LINE);
        let places: Vec<Place> = match config.placement {
            Placement::InPage => {
                let wanted = u32::from(config.ring_size).div_ceil(config.pages);
                let each = (wanted as usize).clamp(1, page / stride);
                // Neighbours of a round are in neighbouring pages.
                (0..each)
                    .flat_map(|nth| (0..config.pages).map(move |number| (number, nth)))
                    .map(|(number, nth)| in_page(number, nth * stride))
                    .collect()
            }
            Placement::Straddling => (0..config.pages / 2)
                .map(|number| Place {
                    in_first: STRADDLES,
                    second: space.offset(space.planned(way, 2 * number + 1)),
                    ..in_page(2 * number, page - STRADDLES)
                })
                .collect(),
        };
        let dynamic = matches!(config.mapping, Mapping::Dynamic { .. });
        let first = Slot::first(way);
        Pool {
            free: (0..places.len() as u32).collect(),
            slots: vec![first; if dynamic { places.len() } else { 0 }],
            places,
            dynamic,
            pages: match config.placement {
                Placement::InPage => 1,
                Placement::Straddling => 2,
            },
            next_slot: first,
            way,
        }
    }

    /// The buffer that will be taken next.
    #[inline]
    pub(crate) fn next(&self) -> Option<(u32, Place)> {
        let buffer = *self.free.front()?;
        Some((buffer, self.places[buffer as usize]))
    }

    pub(crate) fn place(&self, buffer: u32) -> Place {
        self.places[buffer as usize]
    }

    /// Takes the next buffer, mapped; says what the device calls it.
    #[inline]
    pub(crate) fn take(&mut self, space: &Space) -> Option<(u32, Iova)> {
        let buffer = self.free.pop_front()?;
        let place = &self.places[buffer as usize];
        if !self.dynamic {
            return Some((buffer, place.device));
        }
        let slot = match self.next_slot.fits(self.pages) {
            true => self.next_slot,
            false => Slot::first(self.way),
        };
        let within = place.first as u64 & (GRANULE - 1);
        space.map(slot, place.first);
        if self.pages == 2 {
            space.map(slot.next(1), place.second);
        }
        self.next_slot = slot.next(self.pages);
        self.slots[buffer as usize] = slot;
        Some((buffer, Iova(slot.iova().0 + within)))
    }

    /// The slots of a buffer: the first, and how many.
    pub(crate) fn slots(&self, buffer: u32) -> (Slot, u32) {
        (self.slots[buffer as usize], self.pages)
    }

    /// Gives a buffer back that nothing maps any more, or that stays mapped.
    #[inline]
    pub(crate) fn give_back(&mut self, buffer: u32) {
        self.free.push_back(buffer);
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }
}
