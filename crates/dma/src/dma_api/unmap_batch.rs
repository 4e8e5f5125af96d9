// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Unmapping several mappings at once.
#![allow(clippy::result_large_err)] // they have what comes back, and nothing is allocated to box it

use super::{mapping::Held, *};
use crate::domain::{Lost, Mapping, UNMAP_ROUND, UnmapBatchError};
use alloc::boxed::Box;
use core::{iter, mem::ManuallyDrop};

/// Lists of mappings that were taken, in their order, until no device reaches any of them.
pub(super) struct Lists<L> {
    lists: [Option<(ManuallyDrop<L>, Ends)>; UNMAP_ROUND],
    taken: usize,
}

/// How a mapping ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// Its copy came back, or it had more parts than one: nothing is left to wait for.
    ByItself,
    /// With all that are mapped directly.
    Together,
}

impl<L> Lists<L> {
    pub(super) fn new() -> Self {
        Lists {
            lists: [const { None }; UNMAP_ROUND],
            taken: 0,
        }
    }
    fn is_full(&self) -> bool {
        self.taken == UNMAP_ROUND
    }
    fn push(&mut self, list: ManuallyDrop<L>, ends: Ends) {
        self.lists[self.taken] = Some((list, ends));
        self.taken += 1;
    }
    /// Gives the lists to `back` that no device reaches: of those that end together, the first
    /// `ended`. What a device may reach still is never dropped. Returns how many.
    fn give_back(&mut self, ended: usize, mut back: impl FnMut(L)) -> usize {
        let (mut together, mut given) = (0, 0);
        for (list, ends) in self.lists.iter_mut().filter_map(Option::take) {
            if ends == Ends::Together {
                together += 1;
                if together > ended {
                    continue;
                }
            }
            back(ManuallyDrop::into_inner(list));
            given += 1;
        }
        given
    }

    /// Gives the lists back that no device reaches, after what is mapped directly was `unmapped`:
    /// how many of these have ended. Returns how many came back.
    ///
    /// # Errors
    /// What of both is to be told.
    pub(super) fn ended(
        &mut self,
        unmapped: Result<usize, UnmapBatchError>,
        stopped: Option<DmaUnmapError<L>>,
        back: impl FnMut(L),
    ) -> Result<usize, DmaUnmapBatchError<L>> {
        let (all, together, holes) = match unmapped {
            Ok(all) => (all, None, None),
            Err(failed) => (failed.ended, failed.lost, failed.stopped),
        };
        let ended = self.give_back(all, back);
        // a mapping with holes was the last that was taken
        let stopped = stopped.or(holes.map(DmaUnmapError::Direct));
        let (by_itself, stopped) = stopped.map_or((None, None), lost_or);
        let lost = match (together, by_itself) {
            (Some(together), Some(by_itself)) => Some(together.and(by_itself)),
            (one, other) => one.or(other),
        };
        match (lost, stopped) {
            (None, None) => Ok(ended),
            (lost, stopped) => Err(DmaUnmapBatchError {
                ended,
                lost,
                stopped,
            }),
        }
    }
}

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Client<P, T, D> {
    /// Ends the mappings that `mappings` yields, in their order, and brings back what the device
    /// wrote. What is mapped directly is unmapped by [`Domain::unmap_batch`], up to [`UNMAP_ROUND`]
    /// at a time; only then their lists go to `back`, in order, with those that were bounced
    /// between them. Their lists are moved to the stack until then.
    ///
    /// May be called in an interrupt handler, on any CPU. Where `mappings` panics, what it has
    /// yielded is unmapped, and the lists of that round are leaked.
    ///
    /// # Errors
    /// [`DmaUnmapBatchError`]: what `mappings` has still was not taken, and another call goes on.
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
    /// # let buffer = |nth: u64| unsafe { Lent::new(PhysRange::page(PhysPage(0x100 + nth))) };
    /// let map = |nth| nic.map_single(buffer(nth), Direction::FromDevice);
    /// let mut ring: VecDeque<_> = (0..256).map(map).collect::<Result<_, _>>()?;
    /// // one poll: the device says that it has filled so many
    /// let mut packets = Vec::new();
    /// nic.unmap_batch(&mut ring.drain(..32), |buffer| packets.push(buffer)).expect("the unit answers");
    /// assert_eq!(packets.len(), 32);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unmap_batch<L: DmaBuffer>(
        &self,
        mappings: &mut impl Iterator<Item = DmaMapping<L>>,
        mut back: impl FnMut(L),
    ) -> Result<(), DmaUnmapBatchError<L>> {
        let mut ended = 0;
        loop {
            match self.unmap_round(mappings, &mut back) {
                Ok(UNMAP_ROUND) => ended += UNMAP_ROUND,
                Ok(_) => return Ok(()), // there were no more
                Err(error) => {
                    return Err(DmaUnmapBatchError {
                        ended: ended + error.ended,
                        ..error
                    });
                }
            }
        }
    }

    /// How many have ended.
    fn unmap_round<L: DmaBuffer>(
        &self,
        mappings: &mut impl Iterator<Item = DmaMapping<L>>,
        back: &mut impl FnMut(L),
    ) -> Result<usize, DmaUnmapBatchError<L>> {
        let mut lists = Lists::new();
        let mut stopped = None;
        let mut mappings = mappings.fuse();
        let mut direct =
            iter::from_fn(|| self.next_direct(&mut mappings, &mut lists, &mut stopped));
        let unmapped = self.dma.domain.unmap_batch(&mut direct);
        lists.ended(unmapped.map(|()| UNMAP_ROUND), stopped, back)
    }

    /// The next that is mapped directly, while there is room for its list. What comes before it
    /// ends here, and so does all where a watch is to be told; until something is `stopped` at.
    #[inline]
    pub(super) fn next_direct<L: DmaBuffer>(
        &self,
        mappings: &mut impl Iterator<Item = DmaMapping<L>>,
        lists: &mut Lists<L>,
        stopped: &mut Option<DmaUnmapError<L>>,
    ) -> Option<Mapping> {
        while !lists.is_full() && stopped.is_none() {
            let mapping = mappings.next()?;
            if mapping.key != self.key {
                *stopped = Some(DmaUnmapError::Foreign(Box::new(mapping)));
                break;
            }
            match mapping {
                DmaMapping {
                    list,
                    held: Held::Direct(mapping),
                    timed: None,
                    ..
                } if !self.dma.watch.is_on() => {
                    lists.push(list, Ends::Together);
                    return Some(mapping);
                }
                mapping => match self.end_told(mapping) {
                    Ok(list) => lists.push(ManuallyDrop::new(list), Ends::ByItself),
                    Err(error) => *stopped = Some(error),
                },
            }
        }
        None
    }
}

/// An error of one mapping as what it leaves behind, or as where a batch stopped.
fn lost_or<L>(error: DmaUnmapError<L>) -> (Option<Lost>, Option<DmaUnmapError<L>>) {
    let lost = match &error {
        DmaUnmapError::Direct(error) => Lost::one(error),
        _ => None,
    };
    let stopped = lost.is_none().then_some(error);
    (lost, stopped)
}
