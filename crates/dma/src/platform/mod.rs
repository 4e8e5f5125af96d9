// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the core asks of its surroundings.
//!
//! One trait serves a kernel, a host process, loom and a simulated multiprocessor, so atomics and
//! locks are its associated types and every shared word of the core goes through them: what loom or
//! the simulator does not see does not exist. (A lint bans `core::sync::atomic` outside the
//! platforms.)
//!
//! # Contract
//!
//! * **Locks** are interrupt-safe: while a closure given to [`Lock::with`] runs, no interrupt
//!   handler that may enter the core runs on this CPU. Closures are short, never wait for hardware
//!   and never allocate once warm.
//! * **[`Platform::pinned`]**: the closure runs on one CPU, and nothing else enters the core on
//!   that CPU meanwhile, so plain loads and stores of that CPU's words suffice.
//! * **Frames** are 4 KiB, identified by their physical page number; [`Platform::frame_alloc`]
//!   zeroes.
//! * **Waiting** calls [`Platform::relax`] each turn; never inside `pinned`, never with a lock
//!   held.
//!
//! Lock order of the core: `CPU cache -> depot`, `turn -> queue`, `tree` alone, `timer` alone.
//!
//! # Contexts
//!
//! In which a domain and the DMA API ask their platform (yes, or never), and which of their calls
//! call the heap. Tests over all designs and placements hold both tables
//! (`tests/it/heap_contexts.rs`, `heap_failure.rs`, `bounce/heap.rs`).
//!
//! | asked | nothing held | pinned | a lock held |
//! |---|---|---|---|
//! | [`Lock::with`] | yes | yes | yes |
//! | [`Platform::pinned`] | yes | never | never |
//! | [`Platform::frame_alloc`], [`frame_free`](Platform::frame_free) | yes | never | never |
//! | [`ContiguousMemory::frames_alloc`] | yes | never | never |
//! | [`Platform::entries`] | yes | yes | yes, of a slot's frames |
//! | [`Platform::fence`] | yes | never | yes |
//! | [`Platform::relax`], `heap`, [`unique`](Platform::unique) | yes | never | never |
//!
//! The heap is called with nothing held and interrupts as they were, and may have nothing: none of
//! these calls aborts, and nothing is lost. What aborts still is what makes and ends domains and
//! clients, typed buffers ([`Client::buffer`](crate::dma_api::Client::buffer)), and the debug
//! watch.
//!
//! | call | calls the heap | where that has no memory |
//! |---|---|---|
//! | attach | yes | fails |
//! | map, while more is mapped than ever before | yes | fails, unless it can do without magazines |
//! | map, warm | never | |
//! | map, bounced: a slot or a chunk gets memory | yes | fails, unless a later step of the fallback serves |
//! | map, bounced for one use, or its edges, or each segment | yes | fails |
//! | unmap of any kind | `magazine`, `identity`, `kmalloc`, at first; policies with queues, while more waits there than ever before | frees past the magazines; flushes |
//! | unmap, bounced | at first, for magazines | takes the slot's memory away |
//! | `reserve`, `alloc_consistent`, `alloc_coherent` | yes | fails |
//! | `into_raw` of a client, while more is given up than ever before | yes | fails |
//! | flush, tick, shrink | as unmap, whose frees they make | as unmap |
//! | `set_mode` | never | |

mod atomic64;
mod authority;
mod contiguous;
mod copy;
mod dedicated;
mod frame;
mod heap;
#[cfg(test)]
pub(crate) mod one_cpu;
mod percpu;
mod phys_memory;
pub(crate) mod room;
mod word;

pub use atomic64::Atomic64;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use atomic64::Element;
pub use authority::Authority;
pub(crate) use authority::OURS;
pub use contiguous::{ContiguousMemory, FreshRun};
pub use copy::{CopyMemory, NotMemoryError};
pub use core::sync::atomic::Ordering;
pub use dedicated::DedicatedMemory;
pub use frame::{FrameRef, FreshFrame, TableFrame};
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use heap::{Heap, HeapBlock, HeapBlockError};
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use percpu::{CachePadded, PerCpu};
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use phys_memory::PhysMemory;

use crate::units::*;
use alloc::sync::Arc;
use core::marker::PhantomData;

/// Whether both have one memory. Of a platform without state there is one.
pub(crate) fn same<P: Platform>(one: &Arc<P>, other: &Arc<P>) -> bool {
    Arc::ptr_eq(one, other) || size_of::<P>() == 0
}

/// A lock that holds its data. Not re-entrant.
pub trait Lock<T>: Send + Sync {
    /// An unlocked lock around `value`.
    fn new(value: T) -> Self;
    /// Runs `f` with the data, interrupts masked on this CPU.
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;
    /// The same, or nothing where the lock is held: for paths that then take the slow path. Waits
    /// where the platform cannot tell.
    fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        Some(self.with(f))
    }
    /// As [`with`](Self::with), for data that counts what `f` looks at: `visited` reads the count.
    /// Only a platform that charges time asks.
    #[inline]
    fn with_counted<R>(&self, _visited: impl Fn(&T) -> u64, f: impl FnOnce(&mut T) -> R) -> R {
        self.with(f)
    }
}

/// Proof of being pinned to a CPU; it can neither be sent nor leave the closure it was given to.
pub struct Cpu<'pin> {
    index: CpuIndex,
    _pin: PhantomData<(*const (), &'pin mut ())>,
}

impl Cpu<'_> {
    /// For platforms, which pin.
    ///
    /// # Safety
    /// For as long as the result lives nothing but its holder enters the core on CPU `index`, which
    /// is below [`Platform::cpus`]: plain loads and stores of that CPU's words are then enough.
    /// (Nothing checks that; the simulated multiprocessor does, of its own pins.)
    ///
    /// ```
    /// # use ioatlas_dma::{platform::*, units::*};
    /// // SAFETY: an example; nothing is done with it.
    /// let cpu = unsafe { Cpu::new(CpuIndex(0)) };
    /// # assert_eq!(cpu.index(), CpuIndex(0));
    /// ```
    ///
    /// Nothing is pinned by being said to be:
    ///
    /// ```compile_fail,E0133
    /// # use ioatlas_dma::{platform::*, units::*};
    /// let cpu = Cpu::new(CpuIndex(0));
    /// # assert_eq!(cpu.index(), CpuIndex(0));
    /// ```
    #[allow(unsafe_code)] // a promise of its caller's
    #[inline]
    pub unsafe fn new(index: CpuIndex) -> Self {
        Cpu {
            index,
            _pin: PhantomData,
        }
    }
    /// Which CPU this is.
    #[inline]
    pub fn index(&self) -> CpuIndex {
        self.index
    }
}

/// What the core asks of a kernel, a process, a model checker or a simulator.
/// See the module's contract.
///
/// # Safety
/// Tables that devices walk lie in this platform's frames, and the core, which has no other means,
/// believes what it is told. For as long as the platform lives
///
/// * frames are its memory, each handed out to one at a time and zeroed, as [`FreshFrame::new`]
///   demands, and [`entries`](Self::entries) gives the words of the frame that is asked for. What
///   is lent is accessed as such words alone, by the platform too;
/// * [`pinned`](Self::pinned) and [`Lock`](Self::Lock) exclude what the contract
///   says, whatever is interrupted;
/// * [`A64`](Self::A64) is a word that hardware sees, atomic and of the orders that are asked for;
///   fences order it;
/// * [`publish`](Self::publish) has reached memory when it returns, where a unit needs it;
/// * [`unique`](Self::unique) never gives a number twice, and `heap` keeps
///   the contract of `Heap`.
///
/// Else a device may reach what was not mapped, live tables included. Nothing checks it at run
/// time: the core is checked above platforms that keep it (loom, the simulated multiprocessor, the
/// software unit with its oracle), and a platform of one's own by reading it.
#[allow(unsafe_code)]
pub unsafe trait Platform: Send + Sync + 'static {
    /// Shared words, table entries among them.
    type A64: Atomic64;
    /// A lock around a `T`.
    type Lock<T: Send>: Lock<T>;

    /// Runs `f` with no migration and no re-entry on this CPU. Must not be nested.
    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R;
    /// The same, or nothing where this CPU cannot be pinned at once, without a call: for paths that
    /// then take the slow path.
    fn try_pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> Option<R> {
        Some(self.pinned(f))
    }
    /// How many CPUs (slots) there are; [`Cpu::index`] is below it.
    fn cpus(&self) -> usize;

    /// A zeroed frame, or `None` when there is none.
    fn frame_alloc(&self) -> Option<FreshFrame>;
    /// Takes back a frame, which is one of this platform's. A published one gets here only by way
    /// of `Flushed`.
    ///
    /// ```compile_fail,E0061
    /// # use ioatlas_dma::platform::*;
    /// # use ioatlas_host::*;
    /// # let p = &Host::new(HostConfig::default().frames(1));
    /// let other = Host::new(HostConfig::default().frames(1));
    /// p.frame_free(other.frame_alloc().unwrap()); // which p may use itself
    /// ```
    fn frame_free(&self, by: Authority, frame: FreshFrame);
    /// The words of a frame of this platform's, at least as many as the table format in use has
    /// entries. They are there for as long as the frame is lent:
    ///
    /// ```
    /// # use ioatlas_dma::{invalidation::*, platform::*};
    /// # use ioatlas_host::*;
    /// # let p = &Host::new(HostConfig::default().frames(1));
    /// # let sequence = unsafe { FlushSequence::new(p) }; // no unit ever sees the frame
    /// # let by = unsafe { Authority::assume() }; // the frame is its own
    /// let frame = p.frame_alloc().unwrap().publish();
    /// let words = p.entries(by, frame.by_ref());
    /// words[0].store(1, Ordering::Relaxed);
    /// let retired = sequence.retire(p, frame, Scope::DOMAIN);
    /// ```
    ///
    /// Not when it is on its way back:
    ///
    /// ```compile_fail,E0505
    /// # use ioatlas_dma::{invalidation::*, platform::*};
    /// # use ioatlas_host::*;
    /// # let p = &Host::new(HostConfig::default().frames(1));
    /// # let sequence = unsafe { FlushSequence::new(p) }; // no unit ever sees the frame
    /// # let by = unsafe { Authority::assume() }; // the frame is its own
    /// let frame = p.frame_alloc().unwrap().publish();
    /// let words = p.entries(by, frame.by_ref());
    /// let retired = sequence.retire(p, frame, Scope::DOMAIN);
    /// words[0].store(1, Ordering::Relaxed);
    /// ```
    fn entries<'f>(&'f self, by: Authority, frame: FrameRef<'f>) -> &'f [Self::A64];
    /// Writes changed entries back to memory, for units that do not snoop caches.
    fn publish(&self, _entries: &[Self::A64]) {}

    /// A memory fence on this CPU alone.
    fn fence(&self, order: Ordering);
    /// One turn of a wait loop: a pause, a yield to the model, a step of virtual time.
    fn relax(&self);
    /// The general-purpose allocator that the core shares with the rest of the system, if there is
    /// one: what `kmalloc` is to Linux.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    fn heap(&self) -> Option<&dyn Heap> {
        None
    }
    /// A number that this kernel or process has never given before; tells domains apart for good.
    fn unique(&self) -> u64;
}
