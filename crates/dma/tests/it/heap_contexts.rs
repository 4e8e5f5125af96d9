// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! In which contexts a platform and the heap are called: with nothing held, pinned, or with a lock
//! held. The tables in the documents of `ioatlas_dma::platform` are these.

use crate::{
    allocators::counting::{calls, calls_masked, masked},
    bounce::heap,
    lend,
};
use ioatlas_dma::{
    design::{allocators, policies},
    dma_api::*,
    domain::*,
    platform::*,
    table::{TableConfig, fmt::VtdSecond48},
    translator::{Paged, Uncached},
    units::*,
};
use ioatlas_host::{Host, HostConfig};
use std::{cell::Cell, collections::BTreeMap, ptr::NonNull, sync::Arc};

/// What is asked of a platform, in the order of [`ASKED`].
#[derive(Clone, Copy)]
enum Asked {
    Lock,
    Pinned,
    FrameAlloc,
    FrameFree,
    Entries,
    Fence,
    Heap,
    Unique,
}

/// By name, and whether it happens with nothing held, pinned, and with a lock held.
const ASKED: [(&str, [bool; 3]); 8] = [
    ("Lock::with", [true, true, true]),
    ("pinned", [true, false, false]),
    ("frame_alloc", [true, false, false]),
    ("frame_free", [true, false, false]),
    ("entries", [true, true, true]),
    ("fence", [true, false, true]),
    ("heap", [true, false, false]),
    ("unique", [true, false, false]),
];

thread_local! {
    static LOCKS: Cell<u32> = const { Cell::new(0) };
    static PINS: Cell<u32> = const { Cell::new(0) };
    /// A bit for each thing that is asked, by context.
    static SEEN: [Cell<u32>; 3] = const { [const { Cell::new(0) }; 3] };
}

fn saw(asked: Asked) {
    let context = match (LOCKS.get(), PINS.get()) {
        (0, 0) => 0,
        (0, _) => 1,
        _ => 2,
    };
    SEEN.with(|seen| seen[context].set(seen[context].get() | 1 << asked as u32));
}

/// Runs `f` one level deeper.
fn within<R>(depth: &'static std::thread::LocalKey<Cell<u32>>, f: impl FnOnce() -> R) -> R {
    depth.set(depth.get() + 1);
    let result = masked(f);
    depth.set(depth.get() - 1);
    result
}

/// The host, which notes what it is asked.
struct Noted(Host);
struct NotedLock<T: Send>(<Host as Platform>::Lock<T>);

impl<T: Send> Lock<T> for NotedLock<T> {
    fn new(value: T) -> Self {
        NotedLock(Lock::new(value))
    }
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        saw(Asked::Lock);
        self.0.with(|data| within(&LOCKS, || f(data)))
    }
}

// SAFETY: the host's.
unsafe impl DedicatedMemory for Noted {}

// SAFETY: all of it is the host's.
unsafe impl Platform for Noted {
    type A64 = <Host as Platform>::A64;
    type Lock<T: Send> = NotedLock<T>;
    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        saw(Asked::Pinned);
        self.0.pinned(|cpu| within(&PINS, || f(cpu)))
    }
    fn cpus(&self) -> usize {
        self.0.cpus()
    }
    fn frame_alloc(&self) -> Option<FreshFrame> {
        saw(Asked::FrameAlloc);
        self.0.frame_alloc()
    }
    fn frame_free(&self, by: Authority, frame: FreshFrame) {
        saw(Asked::FrameFree);
        self.0.frame_free(by, frame);
    }
    fn entries<'f>(&'f self, by: Authority, frame: FrameRef<'f>) -> &'f [Self::A64] {
        saw(Asked::Entries);
        self.0.entries(by, frame)
    }
    fn fence(&self, order: Ordering) {
        saw(Asked::Fence);
        self.0.fence(order);
    }
    fn relax(&self) {
        assert_eq!(
            (LOCKS.get(), PINS.get()),
            (0, 0),
            "P11: waits with interrupts masked"
        );
        self.0.relax();
    }
    fn heap(&self) -> Option<&dyn Heap> {
        saw(Asked::Heap);
        self.0.heap()
    }
    fn unique(&self) -> u64 {
        saw(Asked::Unique);
        self.0.unique()
    }
}

// SAFETY: all of it is the host's.
unsafe impl CopyMemory for Noted {
    fn is_memory(&self, range: PhysRange) -> bool {
        self.0.is_memory(range)
    }
    fn copy(&self, by: Authority, from: PhysRange, to: PhysAddr) -> Result<(), NotMemoryError> {
        self.0.copy(by, from, to)
    }
    fn zero(&self, by: Authority, range: PhysRange) -> Result<(), NotMemoryError> {
        self.0.zero(by, range)
    }
    fn read(&self, by: Authority, from: PhysAddr, into: &mut [u8]) -> Result<(), NotMemoryError> {
        self.0.read(by, from, into)
    }
    fn write(&self, by: Authority, from: &[u8], to: PhysAddr) -> Result<(), NotMemoryError> {
        self.0.write(by, from, to)
    }
}

// SAFETY: all of it is the host's.
unsafe impl ContiguousMemory for Noted {
    fn frames_alloc(&self, pages: PageCount) -> Option<FreshRun> {
        saw(Asked::FrameAlloc);
        self.0.frames_alloc(pages)
    }
    fn frames_ptr(&self, run: &FreshRun) -> NonNull<u8> {
        self.0.frames_ptr(run)
    }
}

type Dom = Domain<Noted, Paged<Noted, VtdSecond48, Uncached<Noted>>>;

fn domain(allocator: AllocatorConfig, policy: PolicyConfig) -> Dom {
    let host = Host::new(HostConfig::default().frames(4096).slots(2));
    let p = Arc::new(Noted(host.with_heap(ByteCount(4 << 20)).expect("room")));
    let tables = Paged::new(&p, Uncached::new(), TableConfig::default()).expect("a root");
    Domain::new(p, tables, DomainConfig::new(allocator, policy)).expect("within the aperture")
}

/// What a driver calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Call {
    Attach,
    Map,
    WarmMap,
    Unmap,
    Flush,
    SetMode,
    Shrink,
}

/// Calls of the heap: with nothing held, and with interrupts masked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct HeapCalls {
    open: u64,
    masked: u64,
}

impl HeapCalls {
    fn of(f: impl FnOnce()) -> Self {
        let before = (calls(), calls_masked());
        f();
        let masked = calls_masked() - before.1;
        HeapCalls {
            open: calls() - before.0 - masked,
            masked,
        }
    }
}

const MOST: u64 = 4000;

/// Lists of one to three pages.
fn map_many(domain: &Dom, held: &mut Vec<Mapping>) {
    let page = |n: u64| PhysRange::page(PhysPage(0x1000 + n));
    for n in 0..MOST {
        let pages = [page(n), page(n + 7), page(n + 3)];
        let list = &pages[..1 + n as usize % 3];
        held.push(domain.map_list(list, Direction::FromDevice).expect("room"));
    }
}

/// What each call asks of the heap, in a domain that has mapped nothing before.
fn heap_calls(domain: &Dom) -> [(Call, HeapCalls); 9] {
    let mut held = Vec::with_capacity(MOST as usize);
    let attach = HeapCalls::of(|| domain.attach(SourceId(8)).expect("a unit without limits"));
    let growing = HeapCalls::of(|| map_many(domain, &mut held));
    let unmap = HeapCalls::of(|| {
        for mapping in held.drain(MOST as usize / 2..) {
            domain.unmap(mapping).expect("a live mapping");
        }
    });
    let batch = HeapCalls::of(|| {
        let mut batch = held.drain(MOST as usize / 4..);
        domain.unmap_batch(&mut batch).expect("live mappings");
    });
    let start = HeapCalls::of(|| {
        let mut rest = held.drain(..).peekable();
        while rest.peek().is_some() {
            // as many as a batch holds
            let pending = domain.unmap_start(&mut rest);
            pending.finish().expect("live mappings");
        }
    });
    let flush = HeapCalls::of(|| {
        domain.flush().expect("a flush");
        domain.tick(TimeNs(1_000_000_000)).expect("a flush");
    });
    let warm = HeapCalls::of(|| map_many(domain, &mut held));
    let switch = HeapCalls::of(|| {
        if domain.set_mode(InvalidationMode::Strict).is_ok() {
            domain
                .set_mode(InvalidationMode::Deferred)
                .expect("as before");
        }
    });
    for mapping in held.drain(..) {
        domain.unmap(mapping).expect("a live mapping");
    }
    let shrink = HeapCalls::of(|| {
        domain.flush().expect("a flush");
        domain.shrink();
    });
    [
        (Call::Attach, attach),
        (Call::Map, growing),
        (Call::Unmap, unmap),
        (Call::Unmap, batch),
        (Call::Unmap, start),
        (Call::Flush, flush),
        (Call::WarmMap, warm),
        (Call::SetMode, switch),
        (Call::Shrink, shrink),
    ]
}

/// Whether `call` may call the heap.
fn may_call(allocator: &str, policy: &str, call: Call) -> bool {
    let keeps = ["magazine", "identity", "kmalloc"].contains(&allocator);
    let grows = !["strict", "freebsd"].contains(&policy);
    match call {
        Call::Attach | Call::Map => true,
        Call::Unmap | Call::Flush | Call::Shrink => keeps || grows,
        Call::SetMode | Call::WarmMap => false,
    }
}

#[test]
fn the_heap_is_called_where_the_table_says() {
    let mut seen: BTreeMap<Call, u64> = BTreeMap::new();
    for allocator in allocators().map(|allocator| allocator.config) {
        for policy in policies().map(|policy| policy.config) {
            let (allocator_name, policy_name) = (allocator.name(), policy.name());
            let domain = domain(allocator, policy);
            for (call, heap) in heap_calls(&domain) {
                let design = format!("{allocator_name} {policy_name} {call:?}");
                assert_eq!(heap.masked, 0, "P11: {design}: with interrupts masked");
                let may = may_call(allocator_name, policy_name, call);
                assert!(may || heap.open == 0, "{design}: {heap:?}");
                *seen.entry(call).or_default() += heap.open;
            }
        }
    }
    // what the table says is not said for nothing
    let called = [Call::Attach, Call::Map, Call::Unmap].map(|call| seen[&call]);
    assert!(!called.contains(&0), "{seen:?}");
}

/// What drivers ask of the heap through the DMA API, whose pools there are before.
fn bounced(policy: PolicyConfig) -> HeapCalls {
    let domain = Arc::new(domain(DomainConfig::default().allocator, policy));
    let p = domain.platform().clone();
    let first = p.frame_alloc().expect("a frame").page();
    for nth in 1..70 {
        let next = p.frame_alloc().expect("a frame").page();
        assert_eq!(next.0, first.0 + nth, "the arena is fresh");
    }
    let lists = heap::lists(first.addr());
    let dma = Arc::new(Dma::new(domain, heap::small()));
    let mut held = Vec::with_capacity(100);
    let clients = heap::PLACEMENTS.map(|placement| {
        let config = ClientConfig::default().placement(placement);
        dma.client(config).expect("a pool")
    });
    HeapCalls::of(|| {
        for client in &clients {
            assert_eq!(heap::drive(client, &lists, &mut held).refused, 0);
            let array = client.alloc_coherent::<u64>(1024).expect("memory");
            array.free().expect("unmapped");
            let (iova, at) = client.alloc_raw(PageCount(2)).expect("memory");
            // SAFETY: nothing uses it.
            unsafe { client.free_raw(iova, at, PageCount(2)) }.expect("unmapped");
            let one = client.map_single(lend(lists[0][0]), Direction::ToDevice);
            let (iova, len) = client.into_raw(one.expect("room")).expect("memory");
            client.unmap_raw(iova, len, None).expect("live");
            let (again, to) = (lend(lists[0][0]), Direction::FromDevice);
            let one = client.map_single(again, to).expect("room");
            let (iova, len) = client.into_raw(one).expect("memory");
            client.unmap_raw_unsynced(iova, len, to).expect("live");
            let one = client.map_single(lend(lists[0][0]), to).expect("room");
            client.into_raw(one).expect("memory");
            client.unmap_raw_all().expect("live");
        }
    })
}

#[test]
fn the_dma_api_calls_the_heap_with_nothing_held() {
    for policy in policies().map(|policy| policy.config) {
        let heap = bounced(policy);
        let name = policy.name();
        assert_eq!(heap.masked, 0, "P11: {name}: with interrupts masked");
        assert!(heap.open > 0, "{name}");
    }
}

#[test]
fn a_platform_is_asked_where_the_table_says() {
    for policy in policies().map(|policy| policy.config) {
        for allocator in allocators().map(|allocator| allocator.config) {
            heap_calls(&domain(allocator, policy));
        }
        bounced(policy);
    }
    let seen = |nth: usize| {
        SEEN.with(|seen| [0, 1, 2].map(|context: usize| seen[context].get() >> nth & 1 == 1))
    };
    for (nth, (name, contexts)) in ASKED.into_iter().enumerate() {
        assert_eq!(
            seen(nth),
            contexts,
            "{name}: open, pinned, with a lock held"
        );
    }
}
