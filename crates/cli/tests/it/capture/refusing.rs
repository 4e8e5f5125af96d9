// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where nothing can be recorded: what is said, and that nothing is left behind.

use super::kernel::{DMA, Kernel, mappings, put};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

#[test]
fn a_kernel_without_any_events_is_told() {
    let kernel = Kernel::new(&["sched/sched_switch"], "");
    let said = kernel.run(&[]).fails();
    let wanted = "this is Linux 6.12.8-amd64; dma:* came with 6.12";
    assert!(said.contains(wanted), "{said}");
    assert!(kernel.instances().is_empty() && kernel.files().is_empty());
}

#[test]
fn where_there_is_no_tracefs_it_says_how_to_mount_it() {
    let kernel = Kernel::new(&DMA, "");
    let elsewhere = kernel.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let ran = Command::new(env!("CARGO_BIN_EXE_ioatlas"))
        .args(["capture", "-o"])
        .arg(kernel.path("t.trace"))
        .arg("--tracefs")
        .arg(&elsewhere)
        .output()
        .unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(said.contains("mount -t tracefs nodev"), "{said}");
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The program of a user without rights, who finds a copy of it in the directory.
fn of_nobody(kernel: &Kernel) -> Command {
    let program = kernel.path("program");
    let from = env!("CARGO_BIN_EXE_ioatlas");
    if fs::hard_link(from, &program).is_err() {
        fs::copy(from, &program).unwrap();
    }
    let mut command = Command::new(&program);
    command
        .args(["capture", "--tracefs"])
        .arg(kernel.path("tracing"));
    command.current_dir(kernel.directory.path());
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    command
}

#[test]
fn without_permission_it_says_to_be_root() {
    let kernel = Kernel::new(&DMA, "");
    // a user without rights can come here, and write the trace, but not make an instance
    mode(kernel.directory.path(), 0o777);
    mode(&kernel.path("tracing/instances"), 0o500);
    let ran = of_nobody(&kernel).output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(
        said.contains("ermission denied") && said.contains("run as root"),
        "{said}"
    );
    assert_eq!(kernel.files(), ["program"]);
    assert!(kernel.instances().is_empty());
}

/// As in /tmp, after root recorded there.
#[test]
fn a_file_of_another_user_in_a_sticky_folder_is_told_at_once() {
    if !rustix::process::geteuid().is_root() {
        return; // none is of another user
    }
    let kernel = Kernel::new(&DMA, "");
    put(&kernel.path("t.trace"), "old");
    mode(kernel.directory.path(), 0o1777);
    let ran = of_nobody(&kernel).args(["-o", "t.trace"]).output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{said}");
    let why = "t.trace: cannot write: it is another user's";
    assert!(said.contains(why) && said.contains("-o FILE"), "{said}");
    assert!(kernel.instances().is_empty());
}

#[test]
fn an_output_that_cannot_be_written_is_told_before_anything_is_made() {
    let kernel = Kernel::new(&DMA, &mappings(2, 1));
    for (output, why) in [
        ("no/such/t.trace", "cannot write"),
        ("tracing", "not a regular file"),
    ] {
        // where an instance was made, there would be settings
        let ran = kernel.run(&["-o", output]);
        let said = ran.fails();
        assert!(said.contains(why) && said.contains(output), "{said}");
        assert!(ran.settings.is_none());
    }
    assert_eq!(kernel.run(&["-o", "-"]).output.status.code(), Some(2));
    assert!(kernel.instances().is_empty() && kernel.files().is_empty());
}

#[test]
fn nothing_recorded_is_a_failure() {
    let kernel = Kernel::new(&DMA, "");
    let ran = kernel.run(&["--seconds", "0.1", "--device", "5e:00.0"]);
    let said = ran.fails();
    assert!(
        said.contains("no driver mapped or unmapped anything (dma:* of 0000:5e:00.0;"),
        "{said}"
    );
    assert_eq!(ran.out(), "");
    assert_eq!(ran.setting("tracing_on"), "0");
    assert!(kernel.instances().is_empty() && kernel.files().is_empty());
}

#[test]
fn a_setting_that_fails_leaves_nothing() {
    for missing in [
        "buffer_size_kb",
        "options/overwrite",
        "events/dma/enable",
        "per_cpu/cpu2/stats",
    ] {
        let mut kernel = Kernel::new(&DMA, &mappings(2, 1));
        kernel.missing = Some(missing);
        let ran = kernel.run(&["--seconds", "0.1"]);
        let said = ran.fails();
        assert!(said.contains(missing), "{said}");
        assert!(ran.settings.is_some(), "{missing}: events stay on");
        assert!(
            kernel.instances().is_empty() && kernel.files().is_empty(),
            "{missing}"
        );
    }
}
