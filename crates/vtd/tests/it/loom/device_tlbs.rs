// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The list of devices that keep translations, against an unmap: a device is attached, detached, or
//! fenced since it does not answer, while another CPU clears an entry and flushes. The unit is as
//! fast as can be, and the device reads at any time; at most two preemptions.

use crate::common::BY;
use crate::loom::{
    CLEARED, Counter, OLD,
    chip::{Chip, DOMAIN, NIC, Reports, Runs},
    explore,
    machine::Machine,
    platform::on_cpu_1,
};
use ioatlas_dma::{
    invalidation::{FlushSequence, InvalidateError, Scope, WaitLimit},
    platform::{Atomic64, Ordering},
    translator::{AttachError, RemappingUnit},
    units::{PhysPage, SourceId},
};
use ioatlas_vtd::{
    driver::{Config, Unit},
    layout::QueueDepth,
};
use std::sync::Arc;

/// What keeps nothing, and is attached before, so that its bus has a context table.
const OTHER: SourceId = SourceId(0);
const ROOT: PhysPage = PhysPage(0x1234);
const LIMIT: WaitLimit = WaitLimit(3);

struct Bench {
    p: Arc<Machine>,
    chip: Arc<Chip>,
    unit: Unit<Machine, Arc<Chip>>,
    sequence: FlushSequence<Machine>,
}

impl Bench {
    fn new() -> Arc<Self> {
        // of the root table, the ring, the status words and the context table: the ring and what
        // recovery puts aside is under a lock, and read in the time of its holder
        let p = Arc::new(Machine::new(&[1, 0, 1, 4]));
        let chip = Chip::new(p.clone(), Runs::AtOnce, Reports::AtOnce);
        let config = Config::default().limit(LIMIT);
        let unit = Unit::bring_up(p.clone(), chip.clone(), config).expect("a unit like QEMU's");
        let depth = QueueDepth::ONE;
        unit.declare_device_tlb(NIC, depth).expect("it is detached");
        unit.attach(BY, &p, OTHER, DOMAIN, ROOT, 4)
            .expect("a free entry");
        // SAFETY: nothing is translated in the model; what is settled is asserted on, and never
        // freed.
        #[allow(unsafe_code)]
        let sequence = unsafe { FlushSequence::new(&*p) };
        Arc::new(Bench {
            p,
            chip,
            unit,
            sequence,
        })
    }
    fn attach(&self) -> Result<(), AttachError> {
        self.unit.attach(BY, &self.p, NIC, DOMAIN, ROOT, 4)
    }
    /// Attached, and the device has read.
    fn attached() -> Arc<Self> {
        let bench = Bench::new();
        bench.attach().expect("a free entry");
        assert_eq!(bench.chip.access(), Some(OLD));
        bench
    }
    /// What an unmap does. What the flush proves, no access of the device contradicts.
    fn clear_and_flush(&self) -> Result<(), InvalidateError> {
        let table = &self.chip.tables[usize::from(DOMAIN.0)];
        table.store(CLEARED, Ordering::Relaxed);
        let retired = self.sequence.retire(&self.p, (), Scope::DOMAIN);
        let flushed = self
            .sequence
            .flush(&self.p, &self.unit, DOMAIN, Scope::DOMAIN, LIMIT);
        let completion = flushed.map_err(|failed| failed.cause)?;
        if retired.complete(&completion).is_ok() {
            let reached = self.chip.access();
            assert_ne!(reached, Some(OLD), "P1: flushed, and the device reaches it");
        }
        Ok(())
    }
}

/// CPU 0 does `change` while CPU 1 unmaps and the device reads; which accesses found the page.
fn against_an_unmap(
    name: &str,
    begin: fn() -> Arc<Bench>,
    change: fn(&Bench),
    unmapped: fn(Result<(), InvalidateError>) -> bool,
) {
    let reached: [Counter; 2] = Default::default();
    let counters = reached.clone();
    explore(name, 2, move || {
        let bench = begin();
        let device = {
            let bench = bench.clone();
            loom::thread::spawn(move || bench.chip.access())
        };
        let other = {
            let bench = bench.clone();
            on_cpu_1(move || bench.clear_and_flush())
        };
        change(&bench);
        let told = other.join().unwrap();
        assert!(unmapped(told), "{told:?}");
        let found = device.join().unwrap();
        counters[usize::from(found == Some(OLD))].add();
        if told.is_ok() {
            // what was detached may be attached anew, and finds nothing old then either
            let _ = bench.attach();
            assert_ne!(bench.chip.access(), Some(OLD), "P1: in the end");
        }
    });
    let reached = reached.map(|counter| counter.get());
    println!("the device found nothing, the page in {reached:?}");
    assert!(reached.iter().all(|n| *n > 0), "both must be seen");
}

#[test]
fn an_attach_against_an_unmap() {
    against_an_unmap(
        "attach, unmap",
        Bench::new,
        |bench| bench.attach().expect("a free entry"),
        |told| told == Ok(()),
    );
}

#[test]
fn a_detach_against_an_unmap() {
    against_an_unmap(
        "detach, unmap",
        Bench::attached,
        |bench| {
            let detached = bench.unit.detach(BY, &bench.p, NIC, DOMAIN);
            detached.expect("the device answers");
            assert_eq!(bench.chip.access(), None, "P1: detached");
        },
        |told| told == Ok(()),
    );
}

/// Whichever CPU asks the device first is told that it does not answer; the other may be, too.
#[test]
fn a_fence_against_an_unmap() {
    against_an_unmap(
        "fence, unmap",
        || {
            let bench = Bench::attached();
            bench.chip.silence_device();
            bench
        },
        |bench| {
            let scope = Scope::DOMAIN;
            let flushed = bench
                .sequence
                .flush(&bench.p, &bench.unit, DOMAIN, scope, LIMIT);
            let silent = InvalidateError::DeviceTimedOut { device: NIC };
            assert!(flushed.is_ok() || flushed.is_err_and(|f| f.cause == silent));
        },
        |told| [Ok(()), Err(InvalidateError::DeviceTimedOut { device: NIC })].contains(&told),
    );
}
