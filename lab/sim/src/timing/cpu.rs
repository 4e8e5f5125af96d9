// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a body knows of the virtual CPU that it runs on.

use crate::{
    platform::Sim,
    timing::{
        account::{Account, Category},
        params::Cycles,
        span::Window,
        timed::{self, Timed},
    },
};
use ioatlas_dma::units::CpuIndex;
use std::{cell::Cell, rc::Rc, sync::Arc};

/// A virtual CPU, as its body sees it.
pub struct VirtualCpu {
    pub(crate) run: Rc<Timed>,
    pub(crate) index: usize,
    pub(crate) platform: Arc<Sim>,
    pub(crate) counts: Cell<Counts>,
    pub(crate) window: Rc<Window>,
}

/// What a CPU has done since its clock passed the warm-up.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) began: Option<Moment>,
    pub(crate) ended: Option<Moment>,
    pub(crate) operations: u64,
    /// What they took, by the body's own account.
    pub(crate) took: u64,
    /// To which measurement all of that belongs: 0 before the first.
    measurement: u32,
    /// Whether the body has asked.
    ready: bool,
}

/// A moment, and where the CPU's time has gone until then.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) at: u64,
    pub(crate) account: Account,
}

impl VirtualCpu {
    /// Which CPU it is.
    pub fn index(&self) -> CpuIndex {
        CpuIndex(self.index)
    }
    /// The CPU's own clock.
    pub fn now(&self) -> Cycles {
        Cycles(self.run.now(self.index))
    }
    /// Whether the run goes on. A body asks after each operation, and ends, or cleans up, when it
    /// does not: what it does then is not counted.
    pub fn running(&self) -> bool {
        let now = self.run.now(self.index);
        let mut counts = self.counts.get();
        if !counts.ready {
            counts.ready = true;
            self.window.ready(now);
        }
        // a body that shares nothing would run on alone, and the others never ask
        if self.window.waits() {
            self.turn();
        }
        let goes_on = self.window.goes_on(now);
        if let Some(measurement) = self.window.measurement(now)
            && measurement != counts.measurement
        {
            counts = Counts {
                began: Some(self.moment()),
                measurement,
                ready: true,
                ..Counts::default()
            };
            self.window.first(measurement, || {
                let mut state = self.run.state();
                state.lines.forget_use();
                state.locks.forget_use();
            });
        }
        if !goes_on && counts.ended.is_none() {
            counts.ended = Some(self.moment());
        }
        self.counts.set(counts);
        goes_on
    }
    /// Whether what is done now is counted.
    pub fn is_measured(&self) -> bool {
        let counts = self.counts.get();
        counts.began.is_some() && counts.ended.is_none()
    }
    /// Counts one operation of the workload, now done.
    pub fn operation(&self) {
        self.operation_of(Cycles(0));
    }
    /// Counts one operation of the workload, now done, which took so long for the client
    /// that asked for it.
    pub fn operation_of(&self, took: Cycles) {
        if self.is_measured() {
            let mut counts = self.counts.get();
            counts.operations += 1;
            counts.took += took.0;
            self.counts.set(counts);
            self.window.count(self.run.now(self.index));
        }
    }
    /// Does nothing until `until`.
    pub fn idle_until(&self, until: Cycles) {
        self.run.idle(self.index, until.0);
    }
    /// Lets CPUs that are earlier go first. What the body does next with something of its own that
    /// is shared (a `RefCell` that stands for a device, say) is then in the order of virtual time,
    /// until the CPU's clock moves.
    #[track_caller]
    pub fn turn(&self) {
        self.platform.turn();
    }
    /// Works for so long on what no other CPU shares.
    pub fn work(&self, cycles: Cycles) {
        self.run.work(self.index, None, cycles.0);
    }
    /// Runs `f`; time that no source file of the core accounts for is spent for `category`.
    pub fn within<R>(&self, category: Category, f: impl FnOnce() -> R) -> R {
        struct Restore<'a>(&'a VirtualCpu, Category);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.run.scope(self.0.index, self.1);
            }
        }
        let _restore = Restore(self, self.run.scope(self.index, category));
        f()
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment {
            at: self.run.now(self.index),
            account: self.run.account(self.index),
        }
    }
}

/// The calling CPU's clock, for what has no handle to it (a translator, an allocator): `None`
/// outside of a run.
pub fn now() -> Option<Cycles> {
    timed::current().map(|run| Cycles(run.now(run.running())))
}

/// Work of the calling CPU for `category` on what no other CPU shares; nothing outside of a run.
pub fn work(category: Category, cycles: Cycles) {
    if let Some(run) = timed::current() {
        run.work(run.running(), Some(category), cycles.0);
    }
}

/// The calling CPU accesses a register of the unit. Returns when it has.
pub(crate) fn device_access(cost: Cycles) -> Option<u64> {
    let run = timed::current()?;
    let cpu = run.running();
    run.work(cpu, Some(Category::Invalidation), cost.0);
    Some(run.now(cpu))
}
