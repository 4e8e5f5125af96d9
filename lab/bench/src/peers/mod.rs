// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Other people's allocators and page tables, asked for the same.
//!
//! # Theory
//!
//! None of them is an IOVA allocator for several CPUs: each is one structure that one thread at a
//! time may change. Alone a thread owns it ([`Owned`]); several share it behind a mutex
//! ([`Shared`]). Ranges are asked for aligned to their size rounded up to a power of two, as ours
//! are, where the peer's interface can say so. What each cannot do is in its line of [`Peer::doc`].

mod allocators;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // their interfaces are
mod tables;

use crate::{Contestant, Failure, Pattern, Sizes, Subject};
use ioatlas_dma::units::PageCount;
use std::sync::{Mutex, PoisonError};

/// What a peer is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rival {
    /// An allocator alone, without tables.
    Allocator,
    /// A page table alone.
    Table,
}

/// Code of another project, measured beside what it is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The name of its crate.
    pub name: &'static str,
    /// What it is compared with.
    pub rival: Rival,
    /// What it is, and what it cannot do, in a line.
    pub doc: &'static str,
    make: fn() -> Result<Box<dyn Made>, Failure>,
}

impl PartialEq for Peer {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Every peer there is on this machine.
pub fn peers() -> Vec<Peer> {
    let mut all = allocators::PEERS.to_vec();
    #[cfg(target_arch = "x86_64")]
    all.extend(tables::PEERS);
    all
}

impl Peer {
    /// A fresh one, for one contestant.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn subject(&self, threads: usize) -> Result<PeerSubject, Failure> {
        Ok(PeerSubject((self.make)()?.ready(threads)))
    }
}

/// A peer, ready to be measured.
pub struct PeerSubject(Box<dyn Ready>);

impl PeerSubject {
    /// It under `pattern`, on as many threads as it was made for.
    pub fn contestant(&self, pattern: Pattern, sizes: Sizes, threads: usize) -> Contestant<'_> {
        self.0.contestant(pattern, sizes, threads)
    }
}

/// One structure that gives out ranges, for one thread at a time.
pub trait Exclusive: Send + 'static {
    /// One range that was taken.
    type Token: Send;
    /// Takes a range of `pages` pages.
    ///
    /// # Errors
    /// There is no room.
    fn take(&mut self, pages: PageCount) -> Result<Self::Token, Failure>;
    /// Gives a range back.
    ///
    /// # Errors
    /// It does not know the range.
    fn give(&mut self, token: Self::Token) -> Result<(), Failure>;
}

/// An [`Exclusive`] whose type is forgotten.
trait Made {
    fn ready(self: Box<Self>, threads: usize) -> Box<dyn Ready>;
}

impl<E: Exclusive> Made for E {
    fn ready(self: Box<Self>, threads: usize) -> Box<dyn Ready> {
        match threads {
            1 => Box::new(Owned(Mutex::new(Some(*self)))),
            _ => Box::new(Shared(Mutex::new(*self))),
        }
    }
}

/// A subject whose type is forgotten.
trait Ready {
    fn contestant(&self, pattern: Pattern, sizes: Sizes, threads: usize) -> Contestant<'_>;
}

impl<S: Subject> Ready for S
where
    S::Token: 'static,
{
    fn contestant(&self, pattern: Pattern, sizes: Sizes, threads: usize) -> Contestant<'_> {
        Contestant::new(self, pattern, sizes, threads)
    }
}

/// For one thread: its hand takes the structure along.
pub struct Owned<E>(Mutex<Option<E>>);

impl<E: Exclusive> Owned<E> {
    /// Makes a subject of a structure.
    pub fn new(exclusive: E) -> Self {
        Owned(Mutex::new(Some(exclusive)))
    }
}

fn in_use() -> Failure {
    Failure::new("another thread has the structure")
}

impl<E: Exclusive> Subject for Owned<E> {
    type Token = E::Token;
    type Hand = Option<E>;

    fn hand(&self, _: usize) -> Option<E> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
    #[inline]
    fn take(&self, own: &mut Option<E>, pages: PageCount) -> Result<E::Token, Failure> {
        own.as_mut().ok_or_else(in_use)?.take(pages)
    }
    #[inline]
    fn give(&self, own: &mut Option<E>, token: E::Token) -> Result<(), Failure> {
        own.as_mut().ok_or_else(in_use)?.give(token)
    }
}

/// For several threads, behind a mutex.
pub struct Shared<E>(Mutex<E>);

impl<E: Exclusive> Shared<E> {
    /// Makes a subject of a structure.
    pub fn new(exclusive: E) -> Self {
        Shared(Mutex::new(exclusive))
    }
}

impl<E: Exclusive> Subject for Shared<E> {
    type Token = E::Token;
    type Hand = ();

    fn hand(&self, _: usize) {}
    #[inline]
    fn take(&self, (): &mut (), pages: PageCount) -> Result<E::Token, Failure> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.take(pages)
    }
    #[inline]
    fn give(&self, (): &mut (), token: E::Token) -> Result<(), Failure> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.give(token)
    }
}
