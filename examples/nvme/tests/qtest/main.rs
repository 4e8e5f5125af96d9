// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The driver on QEMU's NVMe controller behind QEMU's VT-d unit, without a guest: QEMU's CPU never
//! runs, this process is the machine's software, and its memory is the machine's.
//!
//! What is read is verified by what it is, and what must not be written by canaries; the
//! controller's status proves nothing, as it reports success for what the unit blocked. Without
//! QEMU the tests show as ignored, with what installs it.

mod bad_input;
mod ends;
mod machine;
#[allow(dead_code)]
#[path = "../../../../crates/vtd/tests/conformance/qemu.rs"]
mod qemu;
mod reads;
mod refusing;
mod revoked;
mod session;

use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;

type Test = (&'static str, fn() -> Result<(), Failed>);

fn main() -> ExitCode {
    let missing = qemu::program().is_none();
    let tests: [Test; 11] = [
        ("a typed buffer holds the blocks asked for", reads::typed),
        (
            "under every policy reads bring their blocks and nothing beside changes",
            reads::policies,
        ),
        ("what was written is read back", reads::written),
        ("nothing stays mapped", reads::nothing_stays),
        ("a whole session finds nothing wrong", session::whole),
        ("what was unmapped stays as it was", revoked::after_unmap),
        ("an unmap under way is honoured by edu", revoked::under_way),
        (
            "what cannot be is refused with a reason",
            bad_input::refusals,
        ),
        ("a controller that goes away is an error", bad_input::gone),
        (
            "of a pair of queues that was refused nothing stays mapped",
            ends::refused_queues,
        ),
        (
            "a controller is asked to shut down before it is disabled",
            ends::in_order,
        ),
    ];
    let trials = tests.map(|(name, test)| {
        Trial::test(name, test)
            .with_kind(if missing { qemu::INSTALL } else { "" })
            .with_ignored_flag(missing)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
}
