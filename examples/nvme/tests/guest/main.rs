// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The driver over VFIO, in unmodified Debian guests under QEMU's VT-d unit and its virtio-iommu:
//! boot, devices given to user space, every policy, what each costs.
//!
//! Verdicts come from the data and from canaries in memory, which the driver looks at, and from
//! what QEMU itself saw, in a log outside of the guest: faults, invalidations, reads. Neither the
//! controller's status nor the guest's log proves anything: the one says success for what was
//! blocked, the other drops messages.
//!
//! Costs are instructions, as QEMU counts them (`-icount`): the same on any machine. They are no
//! times: an emulated memory access costs what any instruction does, and an invalidation costs a
//! register write, where hardware takes a thousand cycles or more. What carries over is how many
//! calls, invalidations and copied bytes a read takes.
//!
//! One guest of each is booted for all tests. They are ignored unless asked for:
//! `ci/full.sh nvme-guests`.

mod claims;
mod machine;
mod trace;

use libtest_mimic::{Arguments, Failed, Trial};
use machine::{Run, Unit};
use std::{path::Path, process::ExitCode, sync::OnceLock};

static RUNS: [OnceLock<Result<Run, String>>; 2] = [OnceLock::new(), OnceLock::new()];

fn run(unit: Unit, packages: &Path) -> Result<&'static Run, Failed> {
    let run = RUNS[unit as usize].get_or_init(|| machine::run(unit, packages));
    run.as_ref().map_err(|error| error.as_str().into())
}

type Claim = (&'static str, fn(&Run) -> Result<(), Failed>);

fn main() -> ExitCode {
    let claims: [Claim; 10] = [
        (
            "every policy brings the disk's blocks and nothing else",
            claims::verified,
        ),
        (
            "the report says in which space and memory, and another space is refused with a reason",
            claims::spaces,
        ),
        (
            "QEMU saw a fault for each transfer that was to be blocked, and no other",
            claims::blocked,
        ),
        (
            "what the controller does after an unmap is shown",
            claims::late,
        ),
        (
            "QEMU counts the reads that the driver reports",
            claims::reads,
        ),
        ("bounced reads invalidate nothing", claims::bounced),
        (
            "a list takes one call for each run of neighbours",
            claims::lists,
        ),
        (
            "bouncing is cheaper than mapping, by how much at least",
            claims::ratios,
        ),
        (
            "a burst is unmapped by one call, at the cost of deferred-percpu or near it",
            claims::bursts,
        ),
        (
            "adaptive takes the better route, for 300 instructions or 15 % more at most",
            claims::adaptive,
        ),
    ];
    let mut trials = vec![Trial::test("QEMU's log is understood", trace::self_test)];
    for unit in Unit::ALL {
        for (name, claim) in claims {
            let test = move || {
                let packages = machine::packages(unit).ok_or(unit.install())?;
                claim(run(unit, &packages)?)
            };
            let trial = Trial::test(format!("{}: {name}", unit.name()), test)
                .with_kind("boots a guest: ci/full.sh nvme-guests")
                .with_ignored_flag(true);
            trials.push(trial);
        }
    }
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    for run in RUNS.iter().filter_map(|run| run.get()?.as_ref().ok()) {
        claims::print(run);
    }
    conclusion.exit_code()
}
