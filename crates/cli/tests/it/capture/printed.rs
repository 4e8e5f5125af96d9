// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The shell commands that `--print` prints.

use super::kernel::{DMA, Kernel, contents, counts, mappings, put};
use ioatlas_iotlb::{Event, Trace};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A program of the shell's that is ours: the kernel's part of it, or one that takes no time.
fn stub(directory: &Path, name: &str, script: &str) {
    let path = directory.join(name);
    put(
        &path,
        &format!("#!/bin/sh -e\nPATH=/usr/bin:/bin\n{script}\n"),
    );
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn the_printed_commands_do_the_same() {
    let text = mappings(12, 9)
        .replace("x [0]: y-17", "<...>-17")
        .replace("d.h2.", ".....");
    let mut kernel = Kernel::new(&DMA, &text);
    kernel.dropped = 7;
    let print = [
        "--print",
        "--device",
        "01:00.0",
        "--seconds",
        "0.5",
        "--size",
        "640",
    ];
    let printed = kernel.run(&[&print[..], &["-o", "it's a.trace"]].concat());
    assert_eq!(
        (printed.output.status.code(), printed.err()),
        (Some(0), String::new())
    );
    assert!(kernel.instances().is_empty() && kernel.files().is_empty());
    let script = printed.out();
    assert!(
        script.lines().count() <= 18 && script.starts_with("set -e"),
        "{script}"
    );

    // the kernel, as programs
    let (template, bin) = (kernel.path("template"), kernel.path("bin"));
    fs::create_dir(&template).unwrap();
    kernel.make_files(&template);
    // some of it is there only when tracing is off
    // a task is named once it was recorded
    put(&kernel.path("tracing/saved_cmdlines"), "17 my dd\n");
    let late = text.len() - text.lines().last().unwrap().len() - 1;
    put(&template.join("trace_pipe"), &text[..late]);
    put(&kernel.path("late"), &text[late..]);
    let stats = template.join("per_cpu/cpu0/stats");
    let overrun = fs::read_to_string(&stats).unwrap();
    put(
        &stats,
        &overrun.replace("commit overrun: 0", "commit overrun: 4"),
    );
    stub(&bin, "mkdir", "mkdir \"$1\"; cp -r template/. \"$1\"");
    stub(&bin, "rmdir", "mv \"$1\" settings");
    // what was read is gone, and nothing more is an error
    stub(
        &bin,
        "dd",
        "pipe=${1#if=}; cat \"$pipe\"; : >\"$pipe\"
         if [ \"$(cat \"${pipe%/*}/tracing_on\")\" = 0 ]; then cat late; : >late; fi
         echo \"dd: error reading '$pipe': Resource temporarily unavailable\" >&2; exit 1",
    );
    let program = Path::new(env!("CARGO_BIN_EXE_ioatlas"));
    let path = [&bin, program.parent().unwrap()].map(|path| path.to_str().unwrap());
    let run = || {
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]);
        shell.current_dir(kernel.directory.path());
        // who runs the tests did not call them
        shell.env_remove("SUDO_UID");
        shell.env("PATH", format!("{}:/usr/bin:/bin", path.join(":")));
        shell.output().unwrap()
    };
    let ran = run();
    assert!(ran.status.success(), "{script}\n{ran:?}");
    assert!(ran.stderr.is_empty(), "{ran:?}");
    assert_eq!(counts(&kernel.path("it's a.trace")), (12, 9));
    let trace = Trace::open(&kernel.path("it's a.trace")).unwrap();
    assert_eq!(trace.lost_events(), 7 + 4);
    // as in a capture, nothing is assumed
    let accesses = |event: &Event| matches!(event, Event::Access { .. });
    assert!(!trace.events().iter().any(accesses));
    assert!(kernel.instances().is_empty());
    let plain = fs::read_to_string(kernel.path("it's a.trace")).unwrap();
    let mut stamps = plain.lines().filter(|line| line.starts_with("# at "));
    assert!(stamps.any(|line| line.ends_with(" my dd")), "{plain}");
    for file in ["it's a.trace", "it's a.txt"] {
        let mode = fs::metadata(kernel.path(file))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    // text that is there is not written over
    let kept = fs::read(kernel.path("it's a.txt")).unwrap();
    assert!(!run().status.success());
    assert_eq!(fs::read(kernel.path("it's a.txt")).unwrap(), kept);
    assert!(kernel.instances().is_empty());
    let settings = contents(&kernel.path("settings"));
    for (file, wanted) in [
        ("tracing_on", "0"),
        ("buffer_size_kb", "640"),
        ("trace_clock", "mono"),
        ("options/overwrite", "0"),
        ("events/dma/enable", "1"),
        ("events/dma/dma_alloc/filter", r#"device=="0000:01:00.0""#),
        ("events/enable", "0"),
    ] {
        assert_eq!(settings[file].trim(), wanted, "{file}");
    }
}
