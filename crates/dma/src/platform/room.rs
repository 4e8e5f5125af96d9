// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Room for what a lock protects: allocated with the lock open, and refused with an error.
//!
//! # Theory
//!
//! A vector that grows where it is used calls the heap with the lock held and interrupts masked,
//! and aborts where the heap has nothing. So what is about to be taken is counted first: under the
//! lock, [`Larger::of`] says how large a vector has to be; it is allocated ([`Room::allocate`])
//! with the lock open; under the lock again it takes the place of the old one
//! ([`Larger::take_over`]), which is dropped with the lock open. Meanwhile others may have used
//! what there was, or have brought room of their own: so the count is repeated, and the smaller
//! vector is the one that goes.
//!
//! What was there is moved under the lock, in time linear in what there is. Vectors double, so
//! that is rare, and never shrink.

use super::Lock;
use alloc::{boxed::Box, vec::Vec};
use core::{mem::swap, ops::Deref};

/// The heap has no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMemory;

/// Memory that something behind a lock is short of.
pub trait Room {
    /// Allocates it; with nothing held.
    fn allocate(&mut self) -> Result<(), NoMemory>;
}

/// A vector that is to take the place of one that is short.
pub struct Larger<T> {
    /// How many places are needed.
    least: usize,
    /// How many are better, since it doubles then.
    places: usize,
    vec: Vec<T>,
}

/// Slots are numbered by 32 bits; one number stands for none.
const PLACES_MAX: usize = u32::MAX as usize;

impl<T> Larger<T> {
    /// Of so many places, no less.
    pub fn new(places: usize) -> Self {
        Larger {
            least: places,
            places,
            vec: Vec::new(),
        }
    }

    /// What `vec` needs so that `places` of it can be used; `None` where it has as many.
    #[inline]
    pub fn of(vec: &Vec<T>, places: usize) -> Option<Self> {
        let twice = vec.capacity().saturating_mul(2);
        (!Self::has(vec, places)).then(|| Larger {
            places: places.max(twice.min(PLACES_MAX)).max(8),
            ..Larger::new(places)
        })
    }

    /// Whether `vec` has so many places.
    #[inline]
    pub fn has(vec: &Vec<T>, places: usize) -> bool {
        places <= vec.capacity()
    }

    /// How many places were wanted.
    pub fn places(&self) -> usize {
        self.places
    }

    /// Moves what is in `vec` here and exchanges the two, unless `vec` has got as large by now.
    pub fn take_over(&mut self, vec: &mut Vec<T>) {
        if self.vec.capacity() > vec.capacity() {
            self.vec.append(vec);
            swap(&mut self.vec, vec);
        }
    }

    /// Puts `fill` into all places and exchanges the two; returns what was in `vec`.
    pub fn replace(&mut self, vec: &mut Vec<T>, fill: T) -> &[T]
    where
        T: Copy,
    {
        self.vec.resize(self.places, fill);
        swap(&mut self.vec, vec);
        &self.vec
    }
}

/// Runs `f` under `lock`, again and again until `of` of what it guards has the places that `f` asks
/// for; each time they are allocated in between, with the lock open.
pub fn with_room<D: Send, T, R>(
    lock: &impl Lock<D>,
    of: fn(&mut D) -> &mut Vec<T>,
    mut f: impl FnMut(&mut D) -> Result<R, Larger<T>>,
) -> Result<R, NoMemory> {
    loop {
        match lock.with(&mut f) {
            Ok(result) => return Ok(result),
            Err(mut larger) => {
                larger.allocate()?;
                lock.with(|data| larger.take_over(of(data)));
            }
        }
    }
}

/// An empty vector with room for `len` values.
pub fn vec_of<T>(len: usize) -> Result<Vec<T>, NoMemory> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(len).map_err(|_| NoMemory)?;
    Ok(vec)
}

/// What `make` makes, in memory that is there before.
pub fn boxed<T, E: From<NoMemory>>(make: impl FnOnce() -> Result<T, E>) -> Result<Boxed<T>, E> {
    let mut vacant = vec_of(1)?;
    vacant.push(make()?);
    match vacant.try_into() {
        Ok(boxed) => Ok(Boxed(boxed)),
        Err(_) => unreachable!("it has one value"),
    }
}

/// A value on the heap. (A `Box` is not to be had without an abort where there is no memory.)
#[derive(PartialEq, Eq, Debug)]
pub struct Boxed<T>(Box<[T; 1]>);

impl<T> Boxed<T> {
    /// Frees its place.
    pub fn into_inner(self) -> T {
        let [value] = *self.0;
        value
    }
}

impl<T> Deref for Boxed<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0[0]
    }
}

impl<T> Room for Larger<T> {
    fn allocate(&mut self) -> Result<(), NoMemory> {
        if self.least > PLACES_MAX {
            return Err(NoMemory);
        }
        let reserved = self.vec.try_reserve_exact(self.places);
        reserved
            .or_else(|_| self.vec.try_reserve_exact(self.least))
            .map_err(|_| NoMemory)
    }
}

impl<R: Room> Room for Option<R> {
    fn allocate(&mut self) -> Result<(), NoMemory> {
        self.as_mut().map_or(Ok(()), R::allocate)
    }
}

impl<A: Room, B: Room> Room for (A, B) {
    fn allocate(&mut self) -> Result<(), NoMemory> {
        self.0.allocate()?;
        self.1.allocate()
    }
}
