// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Conformance: one list of cases, run on QEMU's VT-d unit and on the software unit, each against
//! what the specification says, and compared.
//!
//! A *case* writes registers, entries and descriptors as this crate encodes them, lets devices move
//! data, and notes what it sees; what it should see comes from the specification. Where a unit
//! shows something else, the case names clause and reason, or fails; where a reason no longer
//! applies, it fails too. QEMU's device really moves bytes; of the software unit the bench takes
//! the page and looks into the same memory.
//!
//! # What QEMU 7.2 does otherwise
//!
//! Avoided, since there is nothing to compare:
//! - a wait descriptor with status write and interrupt aborts QEMU;
//! - page-selective invalidations compare eight bits of the page number, and masks of 8 and more
//!   flush the domain: pages that must not be flushed differ in those bits, and masks are below 8;
//! - setting the root table pointer, or switching translation, empties every cache: no case needs
//!   entries to survive it, and none can see a flush forgotten after it;
//! - a permission that a *cached* translation lacks is blocked and not recorded: faults are looked
//!   for on pages that are not cached;
//! - the queue is disabled only when it is empty and its last descriptor was a wait: so is ours.
//!
//! Not modelled by it, and shown by software units of other makes: walk caches, accesses in flight,
//! write buffers, incoherent walks, device TLBs. What is compared and differs is printed at the
//! end, with what is run on one unit only, and with the table of what each unit sees.
//!
//! Without QEMU the tests show as ignored, with what installs it.

mod bench;
mod bench_qemu;
mod bench_soft;
mod case;
mod cases;
mod coverage;
mod edu;
mod item;
mod lives;
mod nvme;
mod qemu;
mod run;
mod suite;

use ioatlas_dma::platform::Authority;
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;

/// For calls that a domain would make.
// SAFETY: no domain has the units that these are made to; tables and frames are the cases' own, and
// live as long as the run.
const BY: Authority = unsafe { Authority::assume() };

/// A test that is no family of cases.
type Other = (&'static str, fn() -> Result<(), Failed>);

fn main() -> ExitCode {
    let missing = qemu::program().is_none();
    let trial = |name: &str, test: Box<dyn FnOnce() -> Result<(), Failed> + Send>| {
        let kind = if missing { qemu::INSTALL } else { "" };
        Trial::test(name, test)
            .with_kind(kind)
            .with_ignored_flag(missing)
    };
    let mut trials = Vec::new();
    for (family, cases) in cases::FAMILIES {
        trials.push(trial(
            family,
            Box::new(move || suite::family(family, *cases)),
        ));
    }
    let others: [Other; 8] = [
        ("every item is seen by a case", coverage::every_item),
        ("bring-up with one device", suite::bring_ups),
        ("a transfer under way is revoked", edu::under_way),
        ("QEMU dies in the middle of a case", lives::dies),
        ("QEMU dies under the driver", lives::dies_under_the_driver),
        ("QEMU outlives nothing", lives::outlives_nothing),
        ("QEMU does not start", lives::does_not_start),
        ("QEMU is missing", lives::is_missing),
    ];
    trials.extend(others.map(|(name, test)| trial(name, Box::new(test))));
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    suite::report();
    coverage::report();
    conclusion.exit_code()
}
