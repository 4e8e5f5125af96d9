// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the kernel said is kept where no trace comes of it.

use super::kernel::{DMA, Kernel, Ran, mappings, until};
use std::fs;
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
    // the first line says what was lost
    let why = "t.txt.zst:4:";
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
    let both = said.contains("t.2.txt.zst:4:") && said.contains("is kept: t.2.txt.zst");
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
    let settings = kernel.play(&mut child);
    let output = child.wait_with_output().unwrap();
    let said = Ran { output, settings }.fails();
    assert!(said.contains("is kept: t.txt.zst"), "{said}");
    assert!(said.contains("t.trace.zst: cannot write"), "{said}");
    assert_eq!(kernel.files(), ["t.trace.zst", "t.txt.zst"]);
    let text = fs::read(kernel.path("t.txt.zst")).unwrap();
    assert!(!text.is_empty());
}
