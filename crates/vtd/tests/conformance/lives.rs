// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! QEMU that is not there, does not start, or dies: an error that says so, nothing that hangs, no
//! process left.

use crate::{
    bench::*,
    bench_qemu::QemuBench,
    cases,
    qemu::{self, Qemu},
};
use ioatlas_vtd::layout::AddressWidth;
use libtest_mimic::Failed;
use std::path::Path;

fn ensure(holds: bool, what: impl Into<String>) -> Result<(), Failed> {
    if holds {
        Ok(())
    } else {
        Err(what.into().into())
    }
}

/// Whether the process exists, dead and not waited for included.
fn exists(id: u32) -> bool {
    Path::new(&format!("/proc/{id}")).exists()
}

/// Killed in the middle of a case: the case fails and says what happened, and so does every one
/// after.
pub fn dies() -> Result<(), Failed> {
    let mut bench = QemuBench::start(AddressWidth::Bits48)?;
    let case = cases::Case::new("killed in the middle", |run| {
        let tables = cases::begin(run);
        run.map(tables, cases::PAGE, A, cases::Perm::Read);
        run.reads("alive", cases::PAGE, A);
        run.kill();
        run.reads("dead", cases::PAGE, A);
    });
    let seen = case.run(&mut bench, None);
    let wrong = case.wrong(Which::Qemu, &seen);
    let said = wrong.join("\n");
    let told = "the unit's process: QEMU after `";
    ensure(said.contains(told), format!("it said: {said}"))?;
    let alive = seen.iter().find(|s| s.what == "alive");
    ensure(
        alive.is_some_and(|s| s.got == s.want),
        "it was not alive before",
    )?;
    let after = cases::Case::new("after that", |run| {
        let _ = cases::begin(run);
    });
    let seen = after.run(&mut bench, None);
    ensure(
        !after.wrong(Which::Qemu, &seen).is_empty(),
        "a dead unit passes a case",
    )
}

/// The driver on a unit that goes away gets errors, within its bounds of waiting.
pub fn dies_under_the_driver() -> Result<(), Failed> {
    let mut bench = QemuBench::start(AddressWidth::Bits48)?;
    let case = cases::Case::new("killed under the driver", |run| {
        let Some(driver) = cases::driver::brought_up(run) else {
            return;
        };
        let domain = cases::driver::plain::<4>(run, &driver);
        let mapped = domain.map(cases::PhysRange::page(A), cases::Direction::ToDevice);
        run.kill();
        let unmapped = mapped.map(|mapping| domain.unmap(mapping).is_err());
        run.see("unmap fails", format!("{unmapped:?}"), "Ok(true)");
        let closed = domain.close().is_err();
        run.see("close fails", closed, true);
    });
    let seen = case.run(&mut bench, None);
    for what in ["unmap fails", "close fails"] {
        let of = seen.iter().find(|s| s.what == what);
        ensure(
            of.is_some_and(|s| s.got == s.want),
            format!("{what}: {of:?}"),
        )?;
    }
    ensure(bench.trouble().is_some(), "the bench noticed nothing")
}

/// Dropped, its process is gone and waited for, and its files with it.
pub fn outlives_nothing() -> Result<(), Failed> {
    let qemu = Qemu::start(64 << 20, &["intel-iommu"])?;
    let (id, files) = (qemu.id(), qemu.files().to_path_buf());
    ensure(exists(id) && files.exists(), "it never was")?;
    drop(qemu);
    ensure(!exists(id), "it lives")?;
    ensure(!files.exists(), "its files are left")
}

/// One that does not start says why, at once.
pub fn does_not_start() -> Result<(), Failed> {
    let refused = Qemu::start(64 << 20, &["no-such-device"]);
    let error = refused.map(drop).map_err(|error| error.to_string());
    let error = error.err().unwrap_or_default();
    ensure(
        error.contains("no-such-device"),
        format!("it said: {error}"),
    )
}

/// One that is not installed is no error: the tests are ignored, with what installs it.
pub fn is_missing() -> Result<(), Failed> {
    ensure(qemu::program_in("").is_none(), "found in no directory")?;
    ensure(
        qemu::program_in("/nowhere:/dev").is_none(),
        "found where it is not",
    )
}
