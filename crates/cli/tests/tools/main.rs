// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Commands that run other programs: a browser on the report's page, QEMU, DPDK's testpmd. What
//! needs these programs is ignored unless asked for, by the stage of `ci/full.sh` that is the
//! reason shown.

mod browser;
mod capture;
mod record;

use libtest_mimic::Arguments;
use std::process::ExitCode;

fn main() -> ExitCode {
    let all = [browser::trials(), capture::trials(), record::trials()];
    libtest_mimic::run(&Arguments::from_args(), all.into_iter().flatten().collect()).exit_code()
}
