// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The radix cache: wait-free lookup, whatever the number of entries.
//!
//! # Theory
//!
//! *Runs* are records of four words: first page and permission, end page, and what to add to an
//! IOVA to get the host address. A tree of *tables* of 64 words finds the run of a page. A word of
//! a table, a *slot*, stands for an aligned region of pages and says one of four things:
//!
//! * **empty**: no run has any page there;
//! * **leaf**: exactly one run has pages there, and this is it; it may have pages outside, and need
//!   not have all of the inside;
//! * **page**: the region is one page, and the slot itself is the run of just that page: host
//!   address and permission, no record;
//! * **table**: several runs have pages there, and all of those pages are in that table's region.
//!
//! So a run that is alone in a region takes one word however large it is, and one that fills a
//! region does too: whole memory is one word. Levels at which nothing would branch are skipped
//! (Morrison's PATRICIA, JACM 15, 1968), so the depth is that of the branching among the runs and
//! never over nine; tables of a region that one run has come to fill go away, so one 2 MiB entry
//! and 512 merged ones look the same. (A table of which a single page is left stays: no slot above
//! could be that run.)
//!
//! **The run has authority, the tree is a hint.** A lookup walks to a leaf without comparing
//! anything and then asks the run whether it has the page. A slot that is out of date leads to a
//! run that has not the page, never to a wrong address. A slot that is a run has its page by the
//! table's *base*, the first page of its region, which is written before the table can be found and
//! stays for as long as anybody may find it: so a walk that skipped a level at which it should have
//! turned is found out.
//!
//! **Writers** take turns behind a lock. Host difference and permission of a run never change while
//! a reader can see it. Its first and end page do, one of the two at a time, and each is one word;
//! so what a reader puts together of a run is contiguous whenever it read them. An edit of more
//! than a slot lays a span of pages out anew, in this order: the run that is to have them gets them
//! (a new record, or one that grows); slots are repointed; the runs that had them are trimmed.
//! Between, both are found, never none. To take the middle out of a run, its right part is given to
//! a new record first. A page that joins no neighbour, and whose slot stands for it alone, is one
//! store (`page.rs`).
//!
//! **Readers** do not write but to say, once a guard and on a line of their own, at which *epoch*
//! they began. A lookup that finds nothing while a writer is at work looks again, at most eight
//! times, and then says that it missed, which is harmless in a cache: that bounds every lookup.
//!
//! **Epochs** (`epochs.rs`): what was removed, and records and tables that were taken out, wait
//! until every guard that began before is over. A back end that sandboxes itself must allow
//! `membarrier`, or install its filter before it makes the cache: see
//! [`ioatlas_host`].
//!
//! **Memory** is bounded by [`Limits`]: 32 bytes a record, 586 a table (a frame has seven), and up
//! to 16 and 28 of the writer's lists. Dense pages are slots, and a table serves 64: about 10 bytes
//! each. Scattered over 48 bits at random, a run mostly has a slot of a larger region to itself,
//! and a record: 140 to 180. In the worst case, of large runs that adjoin and part at a single
//! page, nine tables: below 6 KiB. Where tables run out, runs are evicted as where runs do. Memory
//! that was used once is kept for use again.
//!
//! Memory ordering: the writer's stores are releases, the readers' loads acquires (both plain on
//! x86): a reader that sees a slot sees the run that it names, and one that sees that a run was
//! trimmed sees the slots that were repointed before.
//!
//! Lock order: `writer -> frames` (the platform's). Not handled: pages below 4 KiB.

mod arena;
mod audit;
mod edit;
mod epochs;
mod page;
mod reader;
mod writer;

pub use reader::{RadixGuard, RadixReader};

use super::*;
use arena::*;
use epochs::Epochs;
use ioatlas_dma::{
    platform::{Atomic64, Authority, CachePadded, Lock, Ordering, Platform},
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use std::marker::PhantomData;
use std::sync::Arc;
use writer::{Edit, Writer};

/// How large tables are. Only model checking wants other than [`Wide`].
pub trait Shape: Send + Sync + 'static {
    /// Log2 of the slots of a table.
    const BITS: u32;
    /// Levels, the highest number of tables on a walk.
    const LEVELS: u32;
    /// Words of a frame of the platform, a multiple of the slots of a table and of 4.
    const FRAME_WORDS: u64;
}

/// 64 slots; nine levels, for all 52 bits of page numbers.
pub struct Wide;

impl Shape for Wide {
    const BITS: u32 = 6;
    const LEVELS: u32 = 9;
    const FRAME_WORDS: u64 = 512;
}

/// A platform whose frames are one array of words, so that a reader finds a
/// word with one comparison.
pub trait TreeMemory: Platform {
    /// All words, zero or of no meaning until their frame is taken.
    fn words(&self, by: Authority) -> &[Self::A64];
    /// Takes a frame, zeroed; where its first word is.
    fn take_frame(&self) -> Option<u64>;
    /// A full fence on every CPU that reads (membarrier, an IPI, or one on this CPU where readers
    /// fence themselves).
    fn heavy_fence(&self);
    /// The other side of [`heavy_fence`](Self::heavy_fence), for readers that announce themselves
    /// with a plain store: either what they announced before is seen by the CPU that fenced
    /// heavily, or what they read afterwards is what was written before that.
    fn light_fence(&self);
}

impl TreeMemory for Host {
    #[inline(always)]
    fn words(&self, by: Authority) -> &[Self::A64] {
        Host::words(self, by)
    }
    fn take_frame(&self) -> Option<u64> {
        let frame = self.frame_alloc()?.publish();
        Some(frame.page().0 * Wide::FRAME_WORDS)
    }
    fn heavy_fence(&self) {
        Host::heavy_fence(self);
    }
    #[inline(always)]
    fn light_fence(&self) {
        Host::light_fence(self);
    }
}

/// The radix cache on a platform; [`RadixIotlb`] is the one of a process.
pub struct Radix<P: Platform, S: Shape> {
    tree: Tree<P, S>,
    writer: P::Lock<Writer>,
    limits: Limits,
}

/// The radix cache of a process.
pub type RadixIotlb = Radix<Host, Wide>;

/// What readers see without taking a lock.
struct Tree<P: Platform, S> {
    platform: Arc<P>,
    root: CachePadded<P::A64>,
    /// Odd while a writer is at work.
    changes: CachePadded<P::A64>,
    epochs: Epochs<P>,
    _shape: PhantomData<fn() -> S>,
}

impl<P: TreeMemory, S: Shape> private::Sealed for Radix<P, S> {}
impl<P: TreeMemory, S: Shape> private::Sealed for RadixReader<P, S> {}
impl<P: TreeMemory, S: Shape> private::Sealed for RadixGuard<'_, P, S> {}

impl RadixIotlb {
    /// An empty cache. Memory is taken as it is needed.
    #[allow(unsafe_code)] // a promise about the platform
    pub fn new(limits: Limits) -> Arc<Self> {
        let config = HostConfig::default()
            // some more for tables that are few, see `on`
            .frames(Self::frames_for(&limits) + 16)
            .slots(1);
        // SAFETY: the platform is made here, and no other code has it; `Wide` is its shape.
        unsafe { Self::on(Arc::new(Host::new(config)), limits) }
    }
}

impl<P: TreeMemory, S: Shape> Radix<P, S> {
    /// The frames of the platform that a cache of these limits may take.
    pub fn frames_for(limits: &Limits) -> usize {
        Self::frames_of(limits).iter().sum::<u64>() as usize
    }
    /// Those of runs, of tables.
    fn frames_of(limits: &Limits) -> [u64; 2] {
        let runs = (u64::from(limits.runs_held()) + SPARE + 1) * RUN_WORDS;
        let tables = u64::from(limits.tables) + SPARE;
        [
            runs.div_ceil(S::FRAME_WORDS),
            tables.div_ceil(tables_of_frame::<S>()),
        ]
    }

    /// An empty cache whose tables are in frames of `platform`. For model
    /// checking; else see [`RadixIotlb::new`].
    ///
    /// # Safety
    /// What lookups give becomes memory, so nothing but the cache writes to the platform's words,
    /// from now on and until the cache is gone; its words, frames and fences are what
    /// [`TreeMemory`] and [`Platform`] say, and `S` what [`Shape`] says.
    #[allow(unsafe_code)] // no access to memory, only what others may do to it
    pub unsafe fn on(platform: Arc<P>, mut limits: Limits) -> Arc<Self> {
        // less is of no use
        limits.runs = limits.runs_held();
        limits.tables = limits.tables.max(2 * Edit::<P, S>::PATHS as u32);
        let epochs = Epochs::new(limits.readers as usize);
        let cache = Radix {
            tree: Tree {
                platform,
                root: CachePadded(P::A64::new(EMPTY)),
                changes: CachePadded(P::A64::new(0)),
                epochs,
                _shape: PhantomData,
            },
            writer: P::Lock::new(Writer::new(limits)),
            limits,
        };
        // the run at address 0, which an empty slot names, has no pages: its words are zeroed with
        // its frame
        cache.edit(|edit| edit.has_spare());
        Arc::new(cache)
    }
}
