// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Conformance: one list of cases, run on QEMU's VT-d unit and on the software unit, each against what the specification says, and compared.
//!
//! Without QEMU the tests show as ignored, with what installs it.

mod bench;
mod bench_qemu;
mod bench_soft;
mod case;
mod cases;
mod coverage;
mod item;
mod lives;
mod nvme;
mod qemu;
mod run;
mod suite;

use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;

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
    let others: [Other; 7] = [
        ("every item is seen by a case", coverage::every_item),
        ("bring-up with one device", suite::bring_ups),
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
