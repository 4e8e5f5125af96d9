// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Mapping buffers and lists.

use super::*;
use crate::iova::{AllocKind, IovaAlloc, Request};
use crate::table::{InstallCause, InstallError, LeafAttrs};
use crate::units::pages_touched;

/// How a list is installed.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub order: ListOrder,
    pub len: ByteCount,
    pub direction: Direction,
    pub lifetime: Lifetime,
}

impl Place {
    /// Of a single buffer.
    pub fn of(buffer: &PhysRange, direction: Direction, lifetime: Lifetime) -> Self {
        Place {
            order: ListOrder::Ascending,
            len: buffer.len,
            direction,
            lifetime,
        }
    }
}

impl<P: Platform, T: Translator<P>> Domain<P, T> {
    /// Maps one buffer, at an address that the allocator chooses.
    ///
    /// # Errors
    /// [`MapError`]; nothing is mapped then.
    #[inline(always)] // so that the token is made in its place
    pub fn map(
        &self,
        buffer: impl Lend<P, PhysRange>,
        direction: Direction,
    ) -> Result<Mapping, MapError> {
        self.map_with(buffer, direction, MapAttrs::default())
    }

    /// The same, with limits on the address or a hint.
    ///
    /// # Errors
    /// [`MapError`]; nothing is mapped then.
    #[inline(always)] // so that the token is made in its place
    pub fn map_with(
        &self,
        buffer: impl Lend<P, PhysRange>,
        direction: Direction,
        attrs: MapAttrs,
    ) -> Result<Mapping, MapError> {
        let buffer = buffer.lend();
        if !attrs.limits.is_none() {
            return self.map_slow(&buffer, direction, &attrs);
        }
        self.map_buffer(buffer, direction, attrs.lifetime)
    }

    /// The slow path of a single buffer, without limits.
    #[cold]
    #[inline(never)]
    pub(super) fn map_slow_unlimited(
        &self,
        buffer: &PhysRange,
        direction: Direction,
        lifetime: Lifetime,
    ) -> Result<Mapping, MapError> {
        let attrs = MapAttrs {
            lifetime,
            ..MapAttrs::default()
        };
        self.map_slow(buffer, direction, &attrs)
    }

    /// The slow path of a single buffer.
    #[cold]
    #[inline(never)]
    pub(super) fn map_slow(
        &self,
        buffer: &PhysRange,
        direction: Direction,
        attrs: &MapAttrs,
    ) -> Result<Mapping, MapError> {
        check(0, buffer)?;
        let request = Request {
            pages: buffer.pages(),
            limits: attrs.limits,
            contiguous: Some((buffer.addr.page(), direction.perm())),
        };
        let place = Place::of(buffer, direction, attrs.lifetime);
        self.place(&request, &[*buffer], place)
    }

    /// Maps a scatter-gather list into one contiguous range of IOVAs; see [`Mapping::segments`].
    ///
    /// Every segment but the first must begin, and every one but the last end, at a granule. Under
    /// [`ListOrder::Descending`] the first segment has the highest addresses, and in each addresses
    /// ascend; what lies behind the last segment in its granule is then inside the range, and the
    /// device can reach it as it can reach the rest of any granule.
    ///
    /// # Errors
    /// [`MapError`]; nothing is mapped then.
    pub fn map_list<'l>(
        &self,
        list: impl Lend<P, &'l [PhysRange]>,
        direction: Direction,
    ) -> Result<Mapping, MapError> {
        self.map_list_with(list, direction, MapAttrs::default())
    }

    /// The same, with limits on the addresses or a hint.
    ///
    /// # Errors
    /// [`MapError`]; nothing is mapped then.
    pub fn map_list_with<'l>(
        &self,
        list: impl Lend<P, &'l [PhysRange]>,
        direction: Direction,
        attrs: MapAttrs,
    ) -> Result<Mapping, MapError> {
        let list = list.lend();
        let (request, place) = self.measure(list, direction, attrs.lifetime)?;
        let request = Request {
            limits: attrs.limits,
            ..request
        };
        self.place(&request, list, place)
    }

    /// Checks a list; what it asks of an allocator, without limits, and how it is installed.
    #[inline]
    pub(super) fn measure(
        &self,
        list: &[PhysRange],
        direction: Direction,
        lifetime: Lifetime,
    ) -> Result<(Request, Place), MapError> {
        let first = list.first().ok_or(BufferError::NoSegments)?;
        let mut len = 0u64;
        let mut next = first.addr; // as long as the list is contiguous
        let mut contiguous = true;
        for (segment, buffer) in list.iter().enumerate() {
            let end = check(segment, buffer)?;
            contiguous &= buffer.addr == next;
            next = end;
            let begins_inside = segment > 0 && buffer.addr.offset() != 0;
            let ends_inside = segment + 1 < list.len() && end.offset() != 0;
            if begins_inside || ends_inside {
                return Err(BufferError::InnerEdge {
                    segment,
                    buffer: *buffer,
                }
                .into());
            }
            // a list may name memory repeatedly, so the sum needs its own bound
            len = len
                .checked_add(buffer.len.0)
                .filter(|sum| *sum <= 1 << PHYS_BITS)
                .ok_or(BufferError::Overflow {
                    segment,
                    buffer: *buffer,
                })?;
        }
        let len = ByteCount(len);
        let request = Request {
            contiguous: contiguous.then_some((first.addr.page(), direction.perm())),
            ..Request::pages(pages_touched(first.addr.offset(), len))
        };
        let place = Place {
            order: self.order_of(contiguous),
            len,
            direction,
            lifetime,
        };
        Ok((request, place))
    }

    /// Maps one buffer at an address that the caller chose.
    ///
    /// # Errors
    /// [`MapError`]; the address must lie in its granule as the buffer does, and its pages must be
    /// free. Pages that another CPU is freeing at this moment are waited for within a bound, beyond
    /// which they count as in use.
    pub fn map_at(
        &self,
        iova: Iova,
        buffer: impl Lend<P, PhysRange>,
        direction: Direction,
    ) -> Result<Mapping, MapError> {
        let buffer = buffer.lend();
        check(0, &buffer)?;
        if iova.offset() != buffer.addr.offset() {
            return Err(BufferError::Misplaced {
                iova,
                phys: buffer.addr,
            }
            .into());
        }
        let range = IovaRange::new(iova.page(), buffer.pages());
        if let Some(shared) = self.allocator.shared().filter(|s| s.overlaps(&range)) {
            return Err(MapError::SharedRegion { range, shared });
        }
        let alloc = self.claim(range)?;
        let alloc = self.on_alloc(alloc)?;
        let place = Place::of(&buffer, direction, Lifetime::default());
        self.install(alloc, &[buffer], place)
    }

    /// The granules of `list`, in the order of the IOVAs that
    /// [`map_list`](Self::map_list) gives to them.
    pub fn in_iova_order<'l>(
        &self,
        list: &'l [PhysRange],
    ) -> impl Iterator<Item = PhysRun> + use<'l, P, T> {
        let mut pairs = list.windows(2);
        let contiguous = pairs.all(|pair| pair[0].end() == Some(pair[1].addr));
        let order = self.order_of(contiguous);
        let at = move |nth| match order {
            ListOrder::Ascending => nth,
            ListOrder::Descending => list.len() - 1 - nth,
        };
        (0..list.len()).map(move |nth| list[at(nth)].run())
    }

    /// Where a buffer's own address is its IOVA, a contiguous list is as one buffer, and ascends.
    #[inline]
    fn order_of(&self, contiguous: bool) -> ListOrder {
        match self.order {
            ListOrder::Descending if contiguous && self.allocator.shared().is_some() => {
                ListOrder::Ascending
            }
            order => order,
        }
    }

    /// Allocates an IOVA range, and installs `list` there.
    #[inline]
    pub(super) fn place(
        &self,
        request: &Request,
        list: &[PhysRange],
        place: Place,
    ) -> Result<Mapping, MapError> {
        let alloc = self.alloc(request)?;
        let kind = alloc.kind();
        let installed = self.install(alloc, list, place);
        match installed {
            Err(MapError::Install(error)) if kind == AllocKind::Shared && is_full(&error) => {
                // ATC'15 §4.1: what was counted is taken back by now; the fallback serves
                let elsewhere = Request {
                    contiguous: None,
                    ..*request
                };
                let alloc = self.alloc(&elsewhere)?;
                self.install(alloc, list, place)
            }
            installed => installed,
        }
    }

    #[inline]
    pub(super) fn alloc(&self, request: &Request) -> Result<IovaAlloc, MapError> {
        if self.policy.minds_maps() {
            return self.alloc_by_policy(request);
        }
        self.alloc_fresh(request)
    }

    /// Under a policy that has something to do in every map.
    #[inline(never)]
    fn alloc_by_policy(&self, request: &Request) -> Result<IovaAlloc, MapError> {
        let kept = self.policy.alloc(&self.engine(), request);
        match kept.map_err(|failed| MapError::Invalidate(failed.cause))? {
            Some(alloc) => Ok(alloc),
            None => self.on_alloc(self.alloc_fresh(request)?),
        }
    }

    /// Lets the policy see an allocation that comes from the allocator.
    fn on_alloc(&self, alloc: IovaAlloc) -> Result<IovaAlloc, MapError> {
        let alloc = self.policy.on_alloc(&self.engine(), alloc);
        alloc.map_err(|failed| MapError::Invalidate(failed.cause))
    }

    #[inline]
    fn alloc_fresh(&self, request: &Request) -> Result<IovaAlloc, MapError> {
        match self.allocator.alloc(&self.platform, request) {
            Ok(alloc) => Ok(alloc),
            Err(never) if never.is_final() => Err(never.into()),
            Err(_) => {
                self.drain_for_iova()?;
                Ok(self.allocator.alloc(&self.platform, request)?)
            }
        }
    }

    /// The requester drains all, once.
    #[cold]
    fn drain_for_iova(&self) -> Result<(), MapError> {
        let drained = self.policy.drain_all(&self.engine());
        drained.map_err(|failed| MapError::Invalidate(failed.cause))
    }

    /// Installs `list` at the start of the allocation, or undoes all.
    #[inline]
    pub(super) fn install(
        &self,
        alloc: IovaAlloc,
        list: &[PhysRange],
        place: Place,
    ) -> Result<Mapping, MapError> {
        match place.order {
            ListOrder::Ascending => {
                let runs = list.iter().map(PhysRange::run);
                let begin = list[0].addr.offset();
                self.install_runs(alloc, begin, runs, place, begin)
            }
            ListOrder::Descending => self.install_descending(alloc, list, place),
        }
    }

    /// The first segment highest: WIOSCA'10 §5.2 would have lists map their pages as single buffers
    /// do, from the top down.
    #[inline(never)]
    fn install_descending(
        &self,
        alloc: IovaAlloc,
        list: &[PhysRange],
        place: Place,
    ) -> Result<Mapping, MapError> {
        let offset = list[0].addr.offset();
        // inner edges are whole granules, so all segments but the first fill those below it
        let below = pages_touched(offset, place.len).0 - list[0].pages().0;
        let runs = list.iter().rev().map(PhysRange::run);
        self.install_runs(alloc, offset, runs, place, below * GRANULE + offset)
    }

    /// Installs `runs` at the start of the allocation. The buffer begins `offset` bytes into its
    /// granule; its first byte is `begin` bytes into the allocation.
    #[inline]
    fn install_runs(
        &self,
        alloc: IovaAlloc,
        offset: u64,
        runs: impl Iterator<Item = PhysRun> + Clone,
        place: Place,
        begin: u64,
    ) -> Result<Mapping, MapError> {
        let p = &*self.platform;
        let len = place.len;
        let range = IovaRange::new(alloc.range().first, pages_touched(offset, len));
        let leaves = LeafAttrs {
            perm: place.direction.perm(),
            kind: alloc.kind(),
            lifetime: place.lifetime,
        };
        let alloc = self.make_room(alloc, range, runs.clone())?;
        match self.translator.install(OURS, p, range, runs, leaves) {
            Ok(()) => {
                let on_map = self.translator.unit().on_map();
                if on_map != OnMap::Nothing
                    && let Err(cause) = self.follow_map(on_map, range)
                {
                    self.undo(alloc, range)?;
                    return Err(MapError::Invalidate(cause));
                }
                let table = p.pinned(|cpu| {
                    self.counters.mapped(&cpu, range.pages, &alloc);
                    self.translator.learn(OURS, p, &cpu, range, alloc.kind())
                });
                Ok(Mapping {
                    iova: Iova(range.first.addr().0 + begin),
                    len,
                    key: self.key,
                    table,
                    alloc,
                })
            }
            Err(error) => {
                let written = IovaRange::new(range.first, error.done);
                self.undo(alloc, written)?;
                Err(error.into())
            }
        }
    }

    /// What the unit needs to see a translation that was absent.
    #[cold]
    pub(super) fn follow_map(
        &self,
        on_map: OnMap,
        range: IovaRange,
    ) -> Result<(), InvalidateError> {
        match on_map {
            OnMap::Nothing => Ok(()),
            OnMap::FlushWriteBuffers => self.translator.unit().flush_write_buffers(),
            // absent tables may be cached as well as absent leaves
            OnMap::Invalidate => {
                let flushed = self.engine().flush(Scope::tables(range));
                flushed.map(drop).map_err(|failed| failed.cause)
            }
        }
    }

    /// Takes a half-made map back, on the path of every unmap.
    #[cold]
    pub(super) fn undo(&self, alloc: IovaAlloc, written: IovaRange) -> Result<(), MapError> {
        let (_, completed) = self.retire(alloc, written, []);
        completed.map_err(|failed| MapError::Invalidate(failed.cause))
    }
}

/// Whether the page's leaf is counted to the brim, so that this mapping needs another.
fn is_full(error: &InstallError) -> bool {
    matches!(error.cause, InstallCause::Saturated(_))
}

/// Checks one segment, and returns where it ends.
#[inline]
pub(super) fn check(segment: usize, buffer: &PhysRange) -> Result<PhysAddr, BufferError> {
    if buffer.len.0 == 0 {
        return Err(BufferError::Empty { segment });
    }
    buffer.end().ok_or(BufferError::Overflow {
        segment,
        buffer: *buffer,
    })
}
