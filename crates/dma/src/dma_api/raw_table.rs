// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The mappings whose tokens were given up, by IOVA.
//!
//! A hash table in [`SHARDS`] parts by IOVA, each under a lock of its own; tokens lie in it. It
//! grows with the lock open, where nothing is lost if the heap has no memory, and never shrinks: so
//! the heap is not called once there have been as many mappings as ever will be, and what a call
//! costs does not depend on how many there are.
//!
//! A token that is out for a synchronisation leaves its place, so that it has one to come back to.

use super::*;
use crate::{
    iova::{chains::Chains, slots::*},
    platform::room::{Larger, NoMemory, Room},
    units::*,
};

/// Parts of the table.
const SHARDS: usize = 16;

type Token = DmaMapping<Lent<RawList>>;

/// See the module.
pub(super) struct RawTable<P: Platform>([P::Lock<Shard>; SHARDS]);

struct Shard {
    places: Slots<Place>,
    by_iova: Chains,
}

pub(super) struct Place {
    /// The number of the client that gave the token up.
    by: u64,
    what: What,
}

enum What {
    Token(Token),
    /// That of this address is synchronised meanwhile.
    Out(Iova),
    /// The place is spare.
    Nothing,
}

impl Place {
    fn token(&self) -> Option<&Token> {
        match &self.what {
            What::Token(token) => Some(token),
            _ => None,
        }
    }
    fn iova(&self) -> Iova {
        match &self.what {
            What::Token(token) => token.iova,
            What::Out(iova) => *iova,
            What::Nothing => Iova(0),
        }
    }
    /// Takes the token, and leaves `what`.
    fn take(&mut self, what: What) -> Option<Token> {
        match core::mem::replace(&mut self.what, what) {
            What::Token(token) => Some(token),
            _ => None,
        }
    }
}

/// What a part is short of.
type Short = (Option<Larger<Slot<Place>>>, Option<Larger<Link>>);

/// Where a token was, and comes back to.
pub(super) struct Out(Link);

/// What a mapping has to be, to be the one that is meant. Its address is known.
#[derive(Clone, Copy)]
pub(super) struct Meant {
    pub iova: Iova,
    /// Of a client that may end it.
    pub key: u64,
    /// Any, where the interface does not say.
    pub len: Option<ByteCount>,
    /// Any, where the interface does not say.
    pub direction: Option<Direction>,
}

impl Meant {
    /// Whether it is this one.
    #[inline(always)]
    fn is(&self, place: &Place) -> bool {
        let permits = |token: &Token| {
            let is_long = self.len.is_none_or(|len| len == token.len);
            let is_directed = self.direction.is_none_or(|to| to == token.direction);
            token.key == self.key && is_long && is_directed
        };
        let here = |token: &&Token| token.iova == self.iova;
        place.token().filter(here).is_some_and(permits)
    }

    /// Why it is not that one.
    fn check(&self, token: &Token) -> Result<(), RawDmaError> {
        let iova = self.iova;
        if token.key != self.key {
            return Err(SyncError::Foreign { iova }.into());
        }
        if let Some(given) = self.len.filter(|len| token.len != *len) {
            let mapped = token.len;
            return Err(RawDmaError::WrongLength {
                iova,
                mapped,
                given,
            });
        }
        if let Some(given) = self.direction.filter(|given| token.direction != *given) {
            let mapped = token.direction;
            return Err(RawDmaError::WrongDirection {
                iova,
                mapped,
                given,
            });
        }
        Ok(())
    }
}

impl Shard {
    fn new() -> Self {
        Shard {
            places: Slots::new(),
            by_iova: Chains::new(),
        }
    }

    /// Adds `token`, or says what is needed to do that.
    #[inline(always)] // of its one caller
    fn add(&mut self, by: u64, token: &mut Option<Token>) -> Option<Short> {
        let things = self.by_iova.len() + 1;
        if !self.places.has_room(things) || !self.by_iova.has_room(things) {
            return Some((self.places.short(things), self.by_iova.short(things)));
        }
        if let Some(token) = token.take() {
            let iova = token.iova;
            let what = What::Token(token);
            let at = self.places.add(Place { by, what });
            self.by_iova.add(&mut self.places, iova.0, at);
        }
        None
    }

    /// Grows into what was allocated.
    fn enlarge(&mut self, (places, chains): &mut Short) {
        self.places.enlarge(places);
        let number = |place: &Place| place.iova().0;
        self.by_iova.enlarge(&mut self.places, chains, number);
    }

    /// Takes the token that is meant; where the interface gave up several at one address, as it may
    /// where buffers' own addresses are their IOVAs, any that is.
    #[inline(always)]
    fn take(&mut self, meant: &Meant) -> Option<Token> {
        let is_it = |_, place: &Place| meant.is(place);
        let at = (self.by_iova).remove(&mut self.places, meant.iova.0, is_it)?;
        let token = self.places.at_mut(at).take(What::Nothing);
        self.places.remove(at);
        token
    }

    /// Takes it for the moment.
    fn borrow(&mut self, meant: &Meant) -> Option<(Token, Out)> {
        let at = {
            let mut chain = self.by_iova.chained(&self.places, meant.iova.0);
            chain.find(|at| meant.is(self.places.at(*at)))?
        };
        let token = self.places.at_mut(at).take(What::Out(meant.iova))?;
        Some((token, Out(at)))
    }

    /// Why nothing is what is meant.
    #[cold]
    #[inline(never)]
    fn why(&self, meant: &Meant) -> RawDmaError {
        let places = self.by_iova.chained(&self.places, meant.iova.0);
        let there = places.map(|at| self.places.at(at));
        let others = there.filter(|place| place.iova() == meant.iova);
        let differ = others.filter_map(|place| meant.check(place.token()?).err());
        differ.last().unwrap_or(RawDmaError::NotMapped(meant.iova))
    }

    /// Takes the next token `after` that place of those that this client gave up and may end.
    fn take_next(&mut self, after: &mut Option<Link>, by: u64, key: u64) -> Option<Token> {
        let is_its = |place: &Place| {
            let token = place.token().filter(|_| place.by == by);
            token.is_some_and(|token| token.key == key)
        };
        let at = self.places.search(*after, is_its)?;
        *after = Some(at);
        let iova = self.places.at(at).iova();
        self.by_iova
            .remove(&mut self.places, iova.0, |here, _| here == at);
        let token = self.places.at_mut(at).take(What::Nothing);
        self.places.remove(at);
        token
    }
}

impl<P: Platform> RawTable<P> {
    pub fn new() -> Self {
        RawTable(core::array::from_fn(|_| P::Lock::new(Shard::new())))
    }

    fn shard(&self, iova: Iova) -> &P::Lock<Shard> {
        &self.0[shard_of(iova)]
    }

    /// Keeps a token that the client of this number gave up, which comes back where there is no
    /// memory to note it.
    #[allow(clippy::result_large_err)] // a box would need the memory that there is not
    pub fn put(&self, by: u64, token: Token) -> Result<(), Token> {
        let shard = self.shard(token.iova);
        let mut token = Some(token);
        let mut room = None;
        loop {
            let short = shard.with(|shard| {
                if let Some(room) = &mut room {
                    shard.enlarge(room);
                }
                shard.add(by, &mut token)
            });
            let Some(mut more) = short else {
                return Ok(());
            };
            if more.allocate() == Err(NoMemory) {
                return token.map_or(Ok(()), Err);
            }
            room = Some(more); // drops what there was before, with the lock open
        }
    }

    /// Takes the token of the mapping that is meant, to end it.
    #[inline(always)] // of its one caller
    pub fn take(&self, meant: &Meant) -> Result<Token, RawDmaError> {
        let take = |shard: &mut Shard| shard.take(meant).ok_or_else(|| shard.why(meant));
        self.shard(meant.iova).with(take)
    }

    /// Takes the tokens that a client gave up and may end, to end them, one by one; not those that
    /// are out, or come meanwhile.
    pub fn take_all(&self, by: u64, key: u64) -> impl Iterator<Item = Token> {
        self.0.iter().flat_map(move |shard| {
            let mut after = None;
            core::iter::from_fn(move || shard.with(|s| s.take_next(&mut after, by, key)))
        })
    }

    /// Takes it for the moment.
    pub fn borrow(&self, meant: &Meant) -> Result<(Token, Out), RawDmaError> {
        let borrow = |shard: &mut Shard| shard.borrow(meant).ok_or_else(|| shard.why(meant));
        self.shard(meant.iova).with(borrow)
    }

    /// Brings it back.
    pub fn bring_back(&self, token: Token, Out(at): Out) {
        self.shard(token.iova)
            .with(|shard| shard.places.at_mut(at).what = What::Token(token));
    }

    /// Tokens that are in the table, or out for the moment.
    pub fn len(&self) -> usize {
        let lens = self.0.iter().map(|shard| shard.with(|s| s.by_iova.len()));
        lens.sum()
    }
}

/// Where the token of `iova` is. Allocations are aligned to their size, so the lowest bits of the
/// page are the same for all large ones: the highest bits of its product decide. (By another factor
/// than that of the chains, of which each part would use few else.)
fn shard_of(iova: Iova) -> usize {
    let hash = iova.page().0.wrapping_mul(0xd1b5_4a32_d192_ed03);
    (hash >> (u64::BITS - SHARDS.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wherever a design puts them, and however large they are: from the top of the aperture down,
    /// or from the bottom up, one beside the other.
    #[test]
    fn mappings_of_one_size_are_spread_over_the_table() {
        const MAPPINGS: u64 = 256;
        for size_lg2 in 0..=18 {
            for top in [0, (1 << 45 >> size_lg2) - MAPPINGS] {
                let mut held = [0; SHARDS];
                for n in 0..MAPPINGS {
                    let page = (top + n) << size_lg2;
                    held[shard_of(IovaPage(page).addr())] += 1;
                }
                let most = held.into_iter().max().unwrap_or(0);
                let even = MAPPINGS / SHARDS as u64;
                assert!(most <= 2 * even, "2^{size_lg2} pages from {top}: {held:?}");
            }
        }
    }
}
