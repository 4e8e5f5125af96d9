// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! An allocator with what is needed to use it, on a host whose CPU the test chooses.

use crate::allocators::counting::{calls_masked, masked};
use ioatlas_dma::invalidation::{
    FlushSequence, Flushed, Invalidate, InvalidateError, Scope, WaitLimit,
};
use ioatlas_dma::iova::*;
use ioatlas_dma::platform::*;
use ioatlas_dma::units::*;
use ioatlas_host::{Host, HostConfig};
use std::cell::{Cell, RefCell};
use std::fmt;

/// CPUs of the board.
pub const CPUS: usize = 4;

/// A host on which each thread says which CPU it is.
pub struct Board(Host);

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
}

/// Something that happens later, on the same CPU.
pub type Interrupt = Box<dyn FnOnce()>;

thread_local! {
    static ARMED: RefCell<Option<(usize, Interrupt)>> = const { RefCell::new(None) };
}

/// Runs `interrupt` on this CPU right before it is pinned for the `nth` time from now, counted
/// from 0.
pub fn interrupt_before_pin(nth: usize, interrupt: Interrupt) {
    ARMED.replace(Some((nth, interrupt)));
}

/// Whether an interrupt is still to come.
pub fn is_armed() -> bool {
    ARMED.with_borrow(|armed| armed.is_some())
}

fn let_interrupts_in() {
    let due = ARMED.with_borrow_mut(|armed| match armed {
        Some((0, _)) => armed.take(),
        Some((pins, _)) => {
            *pins -= 1;
            None
        }
        None => None,
    });
    if let Some((_, interrupt)) = due {
        interrupt();
    }
}

/// Runs what follows on CPU `index`.
pub fn move_to(index: usize) {
    CPU.set(index);
}

/// The host's, with interrupts masked.
pub struct BoardLock<T: Send>(<Host as Platform>::Lock<T>);

impl<T: Send> Lock<T> for BoardLock<T> {
    fn new(value: T) -> Self {
        BoardLock(Lock::new(value))
    }
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.0.with(|data| masked(|| f(data)))
    }
}

/// What a driver calls: it calls the heap with interrupts as they were.
fn called<R>(f: impl FnOnce() -> R) -> R {
    let before = calls_masked();
    let result = f();
    let calls = calls_masked() - before;
    assert_eq!(calls, 0, "P11: the heap is called with interrupts masked");
    result
}

// SAFETY: the host's, but for pinning: there is one thread, on one CPU at a time.
unsafe impl Platform for Board {
    type A64 = <Host as Platform>::A64;
    type Lock<T: Send> = BoardLock<T>;
    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        let_interrupts_in();
        // SAFETY: one thread, on one CPU at a time; what interrupts it has come in before.
        let cpu = unsafe { Cpu::new(CpuIndex(CPU.get())) };
        masked(|| f(cpu))
    }
    fn cpus(&self) -> usize {
        CPUS
    }
    fn frame_alloc(&self) -> Option<FreshFrame> {
        self.0.frame_alloc()
    }
    fn frame_free(&self, by: Authority, frame: FreshFrame) {
        self.0.frame_free(by, frame)
    }
    fn entries<'f>(&'f self, by: Authority, frame: FrameRef<'f>) -> &'f [Self::A64] {
        self.0.entries(by, frame)
    }
    fn fence(&self, order: Ordering) {
        self.0.fence(order)
    }
    fn relax(&self) {
        self.0.relax()
    }
    fn heap(&self) -> Option<&dyn Heap> {
        self.0.heap()
    }
    fn unique(&self) -> u64 {
        self.0.unique()
    }
}

/// A unit without caches: every invalidation is done at once.
pub struct NoCache;

// SAFETY: there is no cache.
unsafe impl Invalidate for NoCache {
    fn on_map(&self) -> ioatlas_dma::invalidation::OnMap {
        ioatlas_dma::invalidation::OnMap::Nothing
    }
    type Token = ();
    fn submit(&self, _: DomainId, _: Scope) -> Result<(), InvalidateError> {
        Ok(())
    }
    fn done(&self, (): ()) -> Result<bool, InvalidateError> {
        Ok(true)
    }
}

/// A sequence to release allocations by.
pub fn sequence<P: Platform>(p: &P) -> FlushSequence<P> {
    // SAFETY: nothing is ever translated here.
    unsafe { FlushSequence::new(p) }
}

/// An allocator with what is needed to use it.
pub struct Rig<P: Platform> {
    pub p: P,
    pub allocator: AnyAllocator<P>,
    sequence: FlushSequence<P>,
}

impl<P: Platform> Rig<P> {
    pub fn new(p: P, config: AllocatorConfig, first: u64, pages: u64) -> Self {
        Rig {
            allocator: AnyAllocator::new(&p, config, range(first, pages)).expect("it fits"),
            sequence: sequence(&p),
            p,
        }
    }
    pub fn alloc(&self, pages: u64) -> Result<IovaAlloc, AllocError> {
        self.alloc_by(Request::pages(PageCount(pages)))
    }
    pub fn alloc_for(&self, buffer: u64, pages: u64, perm: Perm) -> Result<IovaAlloc, AllocError> {
        let request = Request {
            contiguous: Some((PhysPage(buffer), perm)),
            ..Request::pages(PageCount(pages))
        };
        self.alloc_by(request)
    }
    pub fn alloc_within(&self, pages: u64, limits: Limits) -> Result<IovaAlloc, AllocError> {
        let request = Request {
            limits,
            ..Request::pages(PageCount(pages))
        };
        self.alloc_by(request)
    }
    fn alloc_by(&self, request: Request) -> Result<IovaAlloc, AllocError> {
        called(|| self.allocator.alloc(&self.p, &request))
    }
    /// See [`Backing::nodes_visited`].
    pub fn nodes_visited(&self) -> u64 {
        match &self.allocator {
            AnyAllocator::Plain(backing) => backing.nodes_visited(),
            AnyAllocator::Magazine(magazines) => magazines.backing().nodes_visited(),
            #[allow(unreachable_patterns)] // others own no tree
            _ => 0,
        }
    }
    pub fn reserve(&self, first: u64, pages: u64) -> Result<IovaAlloc, FixedRangeError> {
        called(|| self.allocator.reserve(&self.p, range(first, pages)))
    }
    pub fn flushed(&self, alloc: IovaAlloc) -> Flushed<IovaAlloc> {
        let retired = self.sequence.retire(&self.p, alloc, Scope::DOMAIN);
        let limit = WaitLimit::default();
        let done = self
            .sequence
            .flush(&self.p, &NoCache, DomainId(1), Scope::DOMAIN, limit);
        retired
            .complete(&done.unwrap())
            .map_err(|(_, why)| why)
            .unwrap()
    }
    pub fn free(&self, origin: usize, alloc: IovaAlloc) {
        let flushed = self.flushed(alloc);
        called(|| self.allocator.free(&self.p, CpuIndex(origin), flushed));
    }
    pub fn drain(&self) -> u64 {
        called(|| self.allocator.drain(&self.p)).0
    }
    pub fn usage(&self) -> Usage {
        self.allocator.usage(&self.p)
    }
    /// Audits, and checks that the pages add up with `allocated` of them allocated.
    pub fn check(&self, allocated: u64) {
        self.try_check(allocated)
            .unwrap_or_else(|what| panic!("{what}: {self}"));
    }
    pub fn try_check(&self, allocated: u64) -> Result<(), String> {
        self.allocator.audit(&self.p)?;
        let usage = self.usage();
        if usage.allocated.0 != allocated {
            return Err(format!(
                "{allocated} pages are allocated, not as in {usage:?}"
            ));
        }
        if usage.free.0 + usage.cached.0 + usage.allocated.0 + usage.others.0 != usage.aperture.0 {
            return Err(format!("{usage:?} does not add up"));
        }
        Ok(())
    }
}

impl Rig<Board> {
    pub fn board(config: AllocatorConfig, first: u64, pages: u64) -> Self {
        move_to(0);
        let (first, pages) = match config {
            AllocatorConfig::Kmalloc(_) => (0, first + pages), // a heap has no say in where it begins
            _ => (first, pages),
        };
        Rig::new(Board(host(config, pages, 1)), config, first, pages)
    }
    pub fn heap(&self) -> &dyn Heap {
        self.p.heap().expect("kmalloc has one")
    }
}

/// A host for an allocator of that many pages: of so many bytes is the heap of one that needs a
/// heap.
pub fn host(config: AllocatorConfig, pages: u64, slots: usize) -> Host {
    let host = Host::new(HostConfig::default().frames(1).slots(slots));
    match config {
        AllocatorConfig::Kmalloc(_) => host.with_heap(ByteCount(pages)).expect("room"),
        _ => host,
    }
}

/// A rig whose heap does not follow from its aperture.
pub fn board_with_heap(
    config: AllocatorConfig,
    aperture: IovaRange,
    heap: u64,
) -> Result<Rig<Board>, AllocatorError> {
    move_to(0);
    let host = Host::new(HostConfig::default().frames(1).slots(1));
    let board = Board(host.with_heap(ByteCount(heap)).expect("room"));
    Ok(Rig {
        allocator: AnyAllocator::new(&board, config, aperture)?,
        sequence: sequence(&board),
        p: board,
    })
}

impl<P: Platform> fmt::Display for Rig<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.allocator.describe(&self.p, f)
    }
}

pub fn range(first: u64, pages: u64) -> IovaRange {
    IovaRange::new(IovaPage(first), PageCount(pages))
}
