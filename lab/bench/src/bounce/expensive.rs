// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A translator that takes its time.
//!
//! [`Expensive`] does what the translator under it does, and for each installation and each removal
//! waits, on the CPU, as long as its [`Charge`] says; where the charge says so, with one lock of
//! the translator held. A removal's charge stands for its invalidation too, so put it over a unit
//! that caches nothing. Where nothing is charged it reads no clock and takes no lock.
//!
//! This breaks the contract of locks on purpose, which are to be held shortly: it is a measuring
//! device for host processes. Lock order: `big -> frames`.

use super::cost::{BigLock, Charge};
use core::marker::PhantomData;
use ioatlas_dma::{
    domain::Domain,
    iova::AllocKind,
    platform::*,
    table::{Census, Cleared, InstallError, LeafAttrs, LeafTable, RawError},
    translator::{AttachError, FastPath, Translator},
    units::*,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How time is spent.
pub trait Pace: Send + Sync + 'static {
    /// Lets so much of it pass.
    fn spend(time: Duration);
}

/// Keeps the CPU busy, as one that waits for an exit is lost to the guest. Time without the CPU is
/// not spent: slices of one thread are timed by its CPU time, and a wait that passed while others
/// ran would cost nothing there.
pub struct Spin;

/// Looks at the clock are closer together than this; between two that are not, the
/// CPU ran something else.
const APART: Duration = Duration::from_micros(2);

impl Pace for Spin {
    fn spend(time: Duration) {
        let (mut spent, mut last) = (Duration::ZERO, Instant::now());
        while spent < time {
            std::hint::spin_loop();
            let now = Instant::now();
            spent += now.duration_since(last).min(APART);
            last = now;
        }
    }
}

/// A translator whose every map and unmap costs what a charge says.
pub struct Expensive<P: Platform, T, S = Spin> {
    inner: T,
    charge: Charge,
    big: P::Lock<Charged>,
    spends: PhantomData<S>,
}

/// What has been charged so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // its fields say it
pub struct Charged {
    pub maps: u64,
    pub mapped: PageCount,
    pub unmaps: u64,
    pub unmapped: PageCount,
}

impl<P: Platform, T, S: Pace> Expensive<P, T, S> {
    /// Charges what goes through to `inner`.
    pub fn new(inner: T, charge: Charge) -> Self {
        Expensive {
            inner,
            charge,
            big: Lock::new(Charged::default()),
            spends: PhantomData,
        }
    }
    /// What has been charged; nothing is counted where nothing is charged.
    pub fn charged(&self) -> Charged {
        self.big.with(|charged| *charged)
    }
    /// The translator under it.
    pub fn inner(&self) -> &T {
        &self.inner
    }
    #[inline]
    fn pay(&self, time: impl FnOnce(&Charge) -> Duration, count: impl FnOnce(&mut Charged)) {
        if !self.charge.is_free() {
            self.wait(time(&self.charge), count);
        }
    }
    #[cold]
    fn wait(&self, time: Duration, count: impl FnOnce(&mut Charged)) {
        match self.charge.lock {
            BigLock::Held => self.big.with(|charged| {
                count(charged);
                S::spend(time);
            }),
            BigLock::None => {
                self.big.with(count);
                S::spend(time);
            }
        }
    }
    #[inline]
    fn pay_map(&self, pages: PageCount) {
        let count = |charged: &mut Charged| {
            charged.maps += 1;
            charged.mapped.0 += pages.0;
        };
        self.pay(|charge| charge.map.time(pages), count);
    }
    #[inline]
    fn pay_unmap(&self, pages: PageCount) {
        let count = |charged: &mut Charged| {
            charged.unmaps += 1;
            charged.unmapped.0 += pages.0;
        };
        self.pay(|charge| charge.unmap.time(pages), count);
    }
}

/// What has been charged to a domain.
pub fn charged<P: Platform, T: Translator<P>, S: Pace>(
    domain: &Domain<P, Expensive<P, T, S>>,
) -> Charged {
    domain.translator().charged()
}

#[allow(unsafe_code)] // a promise
// SAFETY: all is done by the one inside, or not at all.
unsafe impl<P: Platform, T: Translator<P>, S: Pace> FastPath<P> for Expensive<P, T, S> {
    #[inline]
    fn knows(&self, by: Authority, cpu: &Cpu<'_>, first: IovaPage) -> Option<LeafTable> {
        // the fast path is pinned, and no caller waits there
        self.inner
            .knows(by, cpu, first)
            .filter(|_| self.charge.is_free())
    }
    fn get_to_know(
        &self,
        by: Authority,
        p: &P,
        cpu: &Cpu<'_>,
        first: IovaPage,
    ) -> Option<LeafTable> {
        let known = self.inner.get_to_know(by, p, cpu, first);
        known.filter(|_| self.charge.is_free())
    }
    #[inline]
    fn install_known<const MOST: usize>(
        &self,
        by: Authority,
        p: &P,
        range: IovaRange,
        to: PhysPage,
        leaf: LeafAttrs,
        table: LeafTable,
    ) -> bool {
        self.charge.is_free()
            && self
                .inner
                .install_known::<MOST>(by, p, range, to, leaf, table)
    }
    #[inline]
    fn learn(
        &self,
        by: Authority,
        p: &P,
        cpu: &Cpu<'_>,
        range: IovaRange,
        kind: AllocKind,
    ) -> Option<LeafTable> {
        let known = self.inner.learn(by, p, cpu, range, kind);
        known.filter(|_| self.charge.is_free())
    }
    #[inline]
    fn leaves_in<'p>(
        &self,
        by: Authority,
        p: &'p P,
        range: IovaRange,
        table: LeafTable,
    ) -> Option<&'p [P::A64]> {
        let leaves = self.inner.leaves_in(by, p, range, table);
        leaves.filter(|_| self.charge.is_free())
    }
    #[inline]
    fn clear_known<const MOST: usize>(&self, by: Authority, p: &P, leaves: &[P::A64]) -> bool {
        self.charge.is_free() && self.inner.clear_known::<MOST>(by, p, leaves)
    }
}

#[allow(unsafe_code)] // a promise
// SAFETY: all is done by the one inside.
unsafe impl<P: Platform, T: Translator<P>, S: Pace> Translator<P> for Expensive<P, T, S> {
    fn platform(&self) -> Option<&Arc<P>> {
        self.inner.platform()
    }
    type Unit = T::Unit;

    #[inline]
    fn unit(&self) -> &T::Unit {
        self.inner.unit()
    }
    fn id(&self) -> DomainId {
        self.inner.id()
    }
    fn aperture(&self) -> IovaRange {
        self.inner.aperture()
    }
    #[inline]
    fn install(
        &self,
        by: Authority,
        p: &P,
        range: IovaRange,
        runs: impl Iterator<Item = PhysRun>,
        leaf: LeafAttrs,
    ) -> Result<(), InstallError> {
        self.pay_map(range.pages);
        self.inner.install(by, p, range, runs, leaf)
    }
    #[inline]
    fn may_promote(&self, range: IovaRange) -> bool {
        self.inner.may_promote(range)
    }
    fn make_room(
        &self,
        by: Authority,
        p: &P,
        range: IovaRange,
        runs: impl Iterator<Item = PhysRun>,
        detached: impl FnMut(TableFrame),
    ) {
        self.inner.make_room(by, p, range, runs, detached);
    }
    #[inline]
    fn clear(
        &self,
        by: Authority,
        p: &P,
        range: IovaRange,
        kind: AllocKind,
        detached: impl FnMut(TableFrame),
    ) -> Cleared {
        let cleared = self.inner.clear(by, p, range, kind, detached);
        self.pay_unmap(range.pages);
        cleared
    }
    fn give_up(&self, by: Authority, p: &P, page: IovaPage) {
        self.inner.give_up(by, p, page);
    }
    fn claim(&self, by: Authority, p: &P, range: IovaRange) -> Result<AllocKind, RawError> {
        self.inner.claim(by, p, range)
    }
    fn attach(&self, by: Authority, p: &P, device: SourceId) -> Result<(), AttachError> {
        self.inner.attach(by, p, device)
    }
    fn detach(&self, by: Authority, p: &P, device: SourceId) -> Result<(), AttachError> {
        self.inner.detach(by, p, device)
    }
    fn mappings(&self, p: &P, within: IovaRange, each: impl FnMut(IovaRange, AllocKind)) {
        self.inner.mappings(p, within, each);
    }
    fn dismantle(&mut self, by: Authority, p: &P, detached: impl FnMut(TableFrame)) {
        self.inner.dismantle(by, p, detached);
    }
    fn retire_id(&self, by: Authority, p: &P) {
        self.inner.retire_id(by, p);
    }
    fn audit(&self, p: &P, shared: Option<IovaRange>) -> Result<Census, String> {
        self.inner.audit(p, shared)
    }
}
