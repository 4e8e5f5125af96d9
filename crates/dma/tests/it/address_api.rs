// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The address API against what happens between its steps: on a platform that lets something else
//! happen just before the core looks at tables for the n-th time.

use ioatlas_dma::{
    domain::*,
    platform::*,
    table::{TableConfig, fmt::VtdSecond48},
    translator::{Paged, Uncached},
    units::*,
};
use ioatlas_host::*;
use std::{
    sync::{Arc, Mutex, mpsc::channel},
    thread,
};

type Elsewhere = Box<dyn FnOnce() + Send>;

struct Hooked {
    host: Host,
    /// After so many times of being pinned, this happens.
    next: Mutex<Option<(usize, Elsewhere)>>,
    /// Where one thread waits for another, this happens.
    waits: Mutex<Option<Elsewhere>>,
}

impl Hooked {
    fn before_pin(&self, nth: usize, what: impl FnOnce() + Send + 'static) {
        *self.next.lock().unwrap() = Some((nth, Box::new(what)));
    }
    fn has_happened(&self) -> bool {
        self.next.lock().unwrap().is_none()
    }
    fn step(&self) {
        let mut next = self.next.lock().unwrap();
        let due = match &mut *next {
            Some((left, _)) if *left > 0 => {
                *left -= 1;
                None
            }
            _ => next.take(),
        };
        drop(next);
        if let Some((_, what)) = due {
            what();
        }
    }
}

// SAFETY: the host's.
unsafe impl DedicatedMemory for Hooked {}

// SAFETY: all is the host's; what a test hooks in runs in between, as another thread would.
unsafe impl Platform for Hooked {
    type A64 = <Host as Platform>::A64;
    type Lock<T: Send> = <Host as Platform>::Lock<T>;

    fn pinned<R>(&self, f: impl FnOnce(Cpu<'_>) -> R) -> R {
        self.step();
        self.host.pinned(f)
    }
    fn cpus(&self) -> usize {
        self.host.cpus()
    }
    fn frame_alloc(&self) -> Option<FreshFrame> {
        self.host.frame_alloc()
    }
    fn frame_free(&self, by: Authority, frame: FreshFrame) {
        self.host.frame_free(by, frame)
    }
    fn entries<'f>(&'f self, by: Authority, frame: FrameRef<'f>) -> &'f [Self::A64] {
        self.host.entries(by, frame)
    }
    fn fence(&self, order: Ordering) {
        self.host.fence(order)
    }
    fn relax(&self) {
        let waits = self.waits.lock().unwrap().take();
        if let Some(what) = waits {
            what();
        }
        self.host.relax()
    }
    fn unique(&self) -> u64 {
        self.host.unique()
    }
}

type Doors = Domain<Hooked, Paged<Hooked, VtdSecond48, Uncached<Hooked>>>;

fn domain() -> (Arc<Hooked>, Arc<Doors>) {
    let config = HostConfig::default().frames(64).slots(2);
    let p = Arc::new(Hooked {
        host: Host::new(config),
        next: Mutex::new(None),
        waits: Mutex::new(None),
    });
    let table = Paged::new(&p, Uncached::new(), TableConfig::default()).unwrap();
    let domain = Domain::new(p.clone(), table, DomainConfig::default()).unwrap();
    (p, Arc::new(domain))
}

/// Two pages from here on are in two leaf tables, so that the address API looks at them in several
/// steps, between which something can happen.
const AT: Iova = Iova(0x1f_f000);
const MEMORY: PhysAddr = PhysAddr(0x5000_0000);

fn bytes(pages: u64) -> ByteCount {
    ByteCount(pages * GRANULE)
}

/// Maps that many pages there, and gives the token up.
fn give_up(domain: &Doors, pages: u64) {
    let memory = PhysRange::new(MEMORY, bytes(pages));
    let mapping = domain.map_at(AT, memory, Direction::ToDevice).unwrap();
    assert_eq!(domain.into_raw(mapping), Ok((AT, bytes(pages))));
}

fn reached(domain: &Doors, page: u64) -> bool {
    let at = IovaPage(AT.page().0 + page);
    let table = domain.translator().table();
    table.walk(&**domain.platform(), at).is_some()
}

/// A late second unmap of a mapping, between whose check and claim the mapping ends and another of
/// another length begins at its address, with the same first entry. It takes nothing of that one.
#[test]
fn a_late_unmap_takes_no_page_of_the_next_mapping() {
    for next in [1, 3, 4, 600] {
        let mut met = 0;
        // its looks at the table: two to check, one to claim, two to check again
        for nth in 0..5 {
            let (p, domain) = domain();
            give_up(&domain, 2);
            let (other, answer) = (domain.clone(), Arc::new(Mutex::new(None)));
            let told = answer.clone();
            p.before_pin(nth, move || {
                let legal = other.unmap_raw(AT, bytes(2)).is_ok();
                if legal {
                    give_up(&other, next);
                }
                *told.lock().unwrap() = Some(legal);
            });
            let late = domain.unmap_raw(AT, bytes(2));
            assert!(p.has_happened());
            let legal = answer.lock().unwrap().unwrap();
            assert_ne!(
                legal,
                late.is_ok(),
                "P10: one of two ends it: {late:?}, {nth}"
            );
            if !legal {
                continue;
            }
            met += 1;
            let why = late.unwrap_err();
            assert!(matches!(why, UnmapError::NotAMapping { .. }), "{why}");
            let whole = (0..next).all(|page| reached(&domain, page));
            assert!(whole, "P14: {next} pages, met at its look {nth}: {why}");
            let ended = domain.unmap_raw(AT, bytes(next));
            assert_eq!(ended.map_err(|e| e.to_string()), Ok(()));
            assert!(!(0..next).any(|page| reached(&domain, page)), "P1");
        }
        assert!(met >= 3, "{next}: between check and claim, too");
    }
}

/// The next mapping's own unmap, while such a late one holds the mapping and has not yet seen that
/// it is another one. It succeeds.
#[test]
fn a_late_unmap_fails_no_unmap_of_the_next_mapping() {
    for next in [3, 600] {
        let (p, domain) = domain();
        give_up(&domain, 2);
        let (told, tell) = channel();
        let (over, is_over) = channel::<()>();
        let (legal, started) = channel();
        let (hooked, other) = (p.clone(), domain.clone());
        // its looks at the table: two to check, one to claim, two to check again
        p.before_pin(2, move || {
            other.unmap_raw(AT, bytes(2)).unwrap();
            give_up(&other, next);
            let hook = hooked.clone();
            hooked.before_pin(1, move || {
                let waits = told.clone();
                *hook.waits.lock().unwrap() = Some(Box::new(move || {
                    waits.send("waits").unwrap();
                    is_over.recv().unwrap();
                }));
                let unmap = move || {
                    let ended = other.unmap_raw(AT, bytes(next)).map_err(|e| e.to_string());
                    let _ = told.send("is over");
                    ended
                };
                legal.send(thread::spawn(unmap)).unwrap();
                tell.recv().unwrap();
            });
        });
        let late = domain.unmap_raw(AT, bytes(2));
        assert!(p.has_happened());
        assert!(matches!(late, Err(UnmapError::NotAMapping { .. })));
        let _ = over.send(());
        let ended = started.recv().unwrap().join().unwrap();
        assert_eq!(ended, Ok(()), "P10: nothing leaks, {next} pages");
    }
}
