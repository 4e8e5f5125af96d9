// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A scheduler of one's own: what it is told, and that it is obeyed.

use ioatlas_dma::{
    platform::{Atomic64, Lock, Ordering::Relaxed},
    units::CpuIndex,
};
use ioatlas_sim::platform::{Body, SimLock, SimWord, Stop, Tasks, scheduler::*};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// Refuses locks that are only tried, sends every agent away once at each point, and writes down
/// what it is told.
#[derive(Default)]
struct Clerk {
    told: RefCell<Vec<(usize, YieldPoint, Subject)>>,
    visited: Cell<u64>,
    freed: RefCell<Vec<usize>>,
    sent: Cell<bool>,
}

impl Scheduler for Clerk {
    fn pass(&self, p: &SchedulerEvent) -> Then {
        if !self.sent.replace(true) {
            return Then::SwitchAndAsk;
        }
        self.sent.set(false);
        self.told.borrow_mut().push((p.agent, p.point, p.subject));
        match p.point {
            YieldPoint::TryAcquire => Then::Refused,
            _ => Then::Go,
        }
    }
    fn due(&self, _: &SchedulerEvent) -> Option<usize> {
        None
    }
    fn visited(&self, _: usize, nodes: u64) {
        self.visited.set(self.visited.get() + nodes);
    }
    fn freed(&self, block: usize) {
        self.freed.borrow_mut().push(block);
    }
    fn steps(&self) -> u64 {
        self.told.borrow().len() as u64
    }
    fn name(&self, agent: usize) -> String {
        format!("agent {agent}")
    }
}

/// Runs `body` to its end; returns how often it stopped on the way.
fn conduct(clerk: &Rc<Clerk>, body: impl FnOnce()) -> usize {
    let body: Body<'_> = Box::new(body);
    let bodies = vec![(Some(CpuIndex(0)), body)];
    Tasks::run(clerk.clone(), bodies, Vec::new(), |tasks| {
        let mut stops = 0;
        while tasks.resume(0) == Stop::Switched {
            stops += 1;
        }
        stops
    })
}

#[test]
fn a_scheduler_is_told_what_each_point_touches_and_is_asked_again() {
    let clerk = Rc::new(Clerk::default());
    let (word, lock) = (SimWord::new(0), SimLock::new([0_u64; 12]));
    let stops = conduct(&clerk, || {
        word.store(7, Relaxed);
        lock.with(|data| data[0] = word.load(Relaxed));
    });
    let told = clerk.told.take();
    assert_eq!(stops, told.len());
    let points: Vec<YieldPoint> = told.iter().map(|(_, point, _)| *point).collect();
    let expected = [
        YieldPoint::Store,
        YieldPoint::Acquire,
        YieldPoint::Load,
        YieldPoint::Release,
    ];
    assert_eq!(points, expected);
    assert_eq!(told[0].2, told[2].2);
    assert_eq!(told[0].2, Subject::Word(std::ptr::from_ref(&word).addr()));
    let Subject::Lock(place) = told[1].2 else {
        panic!("{:?}", told[1])
    };
    assert_eq!((place.address % 64, place.bytes), (0, 128));
    assert_eq!(place.data, "[u64; 12]");
}

#[test]
fn a_lock_that_the_scheduler_refuses_is_not_entered() {
    let clerk = Rc::new(Clerk::default());
    let lock = SimLock::new(0);
    let got = Cell::new(Some(1));
    conduct(&clerk, || got.set(lock.try_with(|value| *value)));
    assert_eq!(got.get(), None);
    // outside of a run nothing refuses
    assert_eq!(lock.try_with(|value| *value), Some(0));
}

#[test]
fn what_a_holder_looked_at_is_told() {
    let clerk = Rc::new(Clerk::default());
    let lock = SimLock::new(100_u64);
    conduct(&clerk, || {
        lock.with_counted(|count| *count, |count| *count += 5);
        lock.with_counted(|count| *count, |count| *count += 2);
    });
    assert_eq!(clerk.visited.get(), 7);
}

#[test]
fn a_task_that_is_not_resumed_to_the_end_is_unwound() {
    struct Gone<'a>(&'a Cell<bool>);
    impl Drop for Gone<'_> {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let (gone, word) = (Cell::new(false), SimWord::new(0));
    let body: Body<'_> = Box::new(|| {
        let _gone = Gone(&gone);
        word.load(Relaxed);
    });
    let bodies = vec![(None, body)];
    let first = Tasks::run(Rc::new(Clerk::default()), bodies, Vec::new(), |tasks| {
        // what the driver does itself is no point
        word.load(Relaxed);
        tasks.resume(0)
    });
    assert_eq!(first, Stop::Switched);
    assert!(gone.get());
}

/// What comes to lie at the same address after it is another block: a scheduler that counts shared
/// lines has to know.
#[test]
fn a_scheduler_is_told_which_block_is_freed() {
    let clerk = Rc::new(Clerk::default());
    let blocks = [[0_u64; 4], [1; 4]];
    conduct(&clerk, || SimWord::frees(&blocks[1]));
    assert_eq!(clerk.freed.take(), [blocks[1].as_ptr().addr()]);
    // and none outside of a run
    SimWord::frees(&blocks[0]);
    assert!(clerk.freed.take().is_empty());
}
