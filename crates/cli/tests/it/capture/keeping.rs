// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the kernel said is kept where no trace comes of it, or one of a part only.

use super::kernel::{DMA, Kernel, Ran, counts, mappings, until};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

#[test]
fn text_that_is_not_understood_is_kept() {
    let broken = mappings(2, 1).replace(
        "dma_unmap_page: 0000:01:00.0 dir=FROM_DEVICE dma_addr",
        "dma_unmap_page: 0000:01:00.0 dir=FROM_DEVICE x",
    );
    let mut kernel = Kernel::new(&DMA, &broken);
    kernel.dropped = 2;
    let said = kernel
        .run(&["--seconds", "0.1", "-o", "t.trace.zst"])
        .fails();
    let why = "t.txt.zst:3:";
    assert!(
        said.contains(why) && said.contains("missing field: dma_addr"),
        "{said}"
    );
    assert!(said.contains("is kept: t.txt.zst"), "{said}");
    assert_eq!(kernel.files(), ["t.txt.zst"]);
    // the next one is kept beside it
    let first = fs::read(kernel.path("t.txt.zst")).unwrap();
    let said = kernel
        .run(&["--seconds", "0.1", "-o", "t.trace.zst"])
        .fails();
    let both = said.contains("t.2.txt.zst:3:") && said.contains("is kept: t.2.txt.zst");
    assert!(both, "{said}");
    assert_eq!(kernel.files(), ["t.2.txt.zst", "t.txt.zst"]);
    assert_eq!(fs::read(kernel.path("t.txt.zst")).unwrap(), first);
    let again = Command::new(env!("CARGO_BIN_EXE_ioatlas"))
        .args(["trace", "convert", "t.txt.zst"])
        .current_dir(kernel.directory.path())
        .output()
        .unwrap();
    let again = String::from_utf8(again.stderr).unwrap();
    assert!(again.contains(why), "{again}");
    assert!(kernel.instances().is_empty());
}

/// They have addresses of memory, and names of all users' tasks.
#[test]
fn a_new_trace_and_a_kept_text_are_for_the_user_that_called_sudo() {
    let broken = mappings(2, 1).replace("dma_addr", "x");
    for (text, file) in [(mappings(2, 1), "t.trace"), (broken, "t.txt.zst")] {
        let kernel = Kernel::new(&DMA, &text);
        let run = || {
            let mut command = kernel.command();
            command.env("SUDO_UID", "1234").env("SUDO_GID", "1235");
            command.args(["--seconds", "0.1", "-o", "t.trace"]);
            kernel.finish(command.spawn().unwrap());
            assert_eq!(kernel.files(), [file]);
            let of = fs::metadata(kernel.path(file)).unwrap();
            (of.mode() & 0o777, of.uid(), of.gid())
        };
        let (user, group) = match rustix::process::geteuid() {
            root if root.is_root() => (1234, 1235),
            other => (other.as_raw(), rustix::process::getegid().as_raw()),
        };
        assert_eq!(run(), (0o600, user, group), "{file}");
        if file == "t.trace" {
            // one that is there stays as open as it is
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            fs::set_permissions(kernel.path(file), open).unwrap();
            assert_eq!(run(), (0o644, user, group));
        }
    }
}

#[test]
fn text_of_a_trace_that_cannot_be_written_is_kept() {
    let kernel = Kernel::new(&DMA, &mappings(2, 1));
    let mut command = kernel.command();
    command.args(["--seconds", "0.1", "-o", "t.trace.zst"]);
    let mut child = command.spawn().unwrap();
    let instance = kernel.path(&format!("tracing/instances/ioatlas-{}", child.id()));
    assert!(until(&mut child, || instance.exists()));
    // what could be written at first cannot any more
    fs::create_dir(kernel.path("t.trace.zst")).unwrap();
    let said = kernel.finish(child).fails();
    assert!(said.contains("is kept: t.txt.zst"), "{said}");
    assert!(said.contains("t.trace.zst: cannot write"), "{said}");
    assert_eq!(kernel.files(), ["t.trace.zst", "t.txt.zst"]);
    let text = fs::read(kernel.path("t.txt.zst")).unwrap();
    assert!(!text.is_empty());
}

/// Runs the program where files may not grow beyond so many blocks of 512 bytes, which stands in for
/// a disk that becomes full.
fn run_limited(kernel: &Kernel, blocks: u32, arguments: &[&str]) -> Ran {
    let limited = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let mut command = kernel.under(&["sh", "-c", &limited]);
    kernel.finish(command.args(arguments).spawn().unwrap())
}

/// Maps of pages at addresses that cannot be foreseen, so that their text stays long.
fn scattered(maps: u64) -> String {
    let line = |n: u64| {
        let page = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        format!(
            "  x-1 [000] ..... {}.{:06}: dma_map_page: 0000:01:00.0 dir=TO_DEVICE \
             dma_addr={page:x}000 size=4096 phys_addr=1000 attrs=\n",
            9 + n / 1000,
            n % 1000 * 1000,
        )
    };
    (0..maps).map(line).collect()
}

#[test]
fn what_was_recorded_before_the_disk_became_full_is_in_the_trace() {
    let maps = 50_000;
    let kernel = Kernel::new(&DMA, &scattered(maps));
    // a trace that is not compressed needs more room
    for (output, blocks) in [("t.trace.zst", 600), ("t.trace", 5000)] {
        let arguments = ["--seconds", "3600", "--json", "-o", output];
        let ran = run_limited(&kernel, blocks, &arguments);
        let said = ran.fails();
        assert!(said.contains("THE DISK BECAME FULL"), "{said}");
        let summary: Value = serde_json::from_str(&ran.out()).unwrap();
        assert_eq!(summary["ended"], "disk-full", "{summary}");
        let recorded = counts(&kernel.path(output)).0;
        assert_eq!(summary["events"], recorded, "{summary}");
        assert!((1..maps).contains(&recorded), "{recorded}");
        // rates are of the time from the first to the last event that is there
        assert!(!summary["notes"].to_string().contains("recorded for"));
        assert_eq!(kernel.files(), [output]);
        assert!(kernel.instances().is_empty());
        fs::remove_file(kernel.path(output)).unwrap();
    }
}

#[test]
fn without_room_for_anything_nothing_is_written() {
    let kernel = Kernel::new(&DMA, &scattered(50_000));
    let said = run_limited(&kernel, 1, &["--seconds", "3600"]).fails();
    assert!(said.contains("nothing was recorded"), "{said}");
    assert!(kernel.instances().is_empty() && kernel.files().is_empty());
}
