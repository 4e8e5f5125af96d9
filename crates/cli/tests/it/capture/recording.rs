// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is in a capture: what the kernel said, and what it could not say.

use super::kernel::{DMA, IOMMU, Kernel, counts, mappings, put};
use ioatlas_iotlb::Trace;
use serde_json::Value;
use std::fs;
use std::process::Command;

#[test]
fn what_is_mapped_is_in_the_trace() {
    let text = mappings(12, 9);
    let kernel = Kernel::new(&DMA, &text);
    let arguments = ["--seconds", "0.1", "-o", "t.trace", "--size", "640"];
    let ran = kernel.run(&[&arguments[..], &["--json"]].concat());
    let said = ran.json();
    assert_eq!(ran.err(), "");
    for (field, wanted) in [
        ("events", 21.into()),
        ("lost", 0.into()),
        ("cpus", 2.into()),
        ("buffer_kib", 640.into()),
        ("ended", "time".into()),
        ("recorded", "dma:*".into()),
        ("file", "t.trace".into()),
        ("devices", Value::Array(Vec::new())),
    ] as [(&str, Value); 8]
    {
        assert_eq!(said[field], wanted, "{said}");
    }
    assert!(said["seconds"].as_f64().unwrap() >= 0.1, "{said}");
    let trace = kernel.path("t.trace");
    assert_eq!(said["bytes"], trace.metadata().unwrap().len());
    assert_eq!(counts(&trace), (12, 9));
    // as if the text had been converted
    fs::write(kernel.path("text"), &text).unwrap();
    let converted = Command::new(env!("CARGO_BIN_EXE_ioatlas"))
        .args([
            "trace",
            "convert",
            "text",
            "--assume=none",
            "-o",
            "converted",
        ])
        .current_dir(kernel.directory.path())
        .output();
    assert!(converted.unwrap().status.success());
    let [ours, theirs] =
        ["t.trace", "converted"].map(|name| fs::read_to_string(kernel.path(name)).unwrap());
    // but for the time that only the recording knows
    let (time, ours): (Vec<&str>, Vec<&str>) = ours
        .lines()
        .partition(|line| line.starts_with("# note recorded-ns "));
    assert_eq!(ours, theirs.lines().collect::<Vec<_>>());
    let [time] = time.as_slice() else {
        panic!("{time:?}");
    };
    let ns: u64 = time.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(ns >= 100_000_000, "{time}");

    for (file, wanted) in [
        ("tracing_on", "0"),
        ("buffer_size_kb", "640"),
        ("trace_clock", "mono"),
        ("options/overwrite", "0"),
        ("events/dma/enable", "1"),
        ("events/dma/dma_map_page/enable", "0"), // by its own switch it was not
        ("events/dma/dma_map_page/filter", "none"),
        ("events/enable", "0"),
    ] {
        assert_eq!(ran.setting(file), wanted, "{file}");
    }
    assert!(kernel.instances().is_empty());
    assert_eq!(kernel.files(), ["converted", "t.trace", "text"]);

    let plain = kernel.run(&arguments).out();
    let (head, tail) = (
        "t.trace: 21 events (dma:*) in ",
        " s on 2 CPUs, none lost; ",
    );
    assert!(plain.starts_with(head) && plain.contains(tail), "{plain}");
    assert!(plain.ends_with("Next: ioatlas report t.trace\n"), "{plain}");
}

#[test]
fn what_events_leave_out_is_said() {
    let kernel = Kernel::new(&["dma/dma_map_page", "dma/dma_map_sg"], &mappings(1, 1));
    let format = kernel.path("tracing/events/dma/dma_map_sg/format");
    let declared = fs::read_to_string(&format).unwrap();
    let said = |release: &str, format_of_lists: &str| {
        kernel.put_of_machine("proc/sys/kernel/osrelease", release);
        fs::write(&format, format_of_lists).unwrap();
        let ran = kernel.run(&["--seconds", "0.1", "--json"]);
        ran.json();
        ran.err()
    };
    let long = said("6.12.8", &declared);
    assert!(
        long.contains("full_nents") && long.lines().count() == 1,
        "{long}"
    );
    let bounded = format!("{declared}\tfield:int full_nents;\toffset:12;\n");
    assert_eq!(said("6.15.0", &bounded), "");
    let linked = said("6.16.0-rc1", &bounded);
    assert!(linked.contains("dma_iova_link"), "{linked}");
    assert_eq!(linked.lines().count(), 1, "{linked}");
}

#[test]
fn what_was_lost_is_said_and_stays_in_the_trace() {
    let mut kernel = Kernel::new(&DMA, &mappings(12, 9));
    kernel.dropped = 7;
    let arguments = ["--seconds", "0.1", "-o", "t.trace.gz"];
    let ran = kernel.run(&[&arguments[..], &["--json"]].concat());
    assert_eq!(ran.json()["lost"], 7);
    let trace = Trace::open(&kernel.path("t.trace.gz")).unwrap();
    assert_eq!(trace.lost_events(), 7);
    let plain = kernel.run(&arguments).out();
    assert!(
        plain.contains("7 MORE lost") && plain.contains("--size"),
        "{plain}"
    );
    assert!(kernel.instances().is_empty());
}

#[test]
fn only_the_devices_asked_for_are_recorded() {
    let kernel = Kernel::new(&DMA, &mappings(1, 1));
    // an event that names no device
    let nameless = kernel.path("tracing/events/dma/dma_new/format");
    put(&nameless, "format:\n\tfield:u64 device_id;\toffset:8;\n");
    let devices = ["--device", "5e:00.0", "--device", "fe300000.mmc"];
    let ran = kernel.run(&[&["--seconds", "0.1", "--json"], &devices[..]].concat());
    assert_eq!(
        ran.json()["devices"],
        serde_json::json!(["0000:5e:00.0", "fe300000.mmc"])
    );
    assert_eq!(ran.err(), "left out: dma:dma_new, which names no device\n");
    for event in DMA {
        let filter = ran.setting(&format!("events/{event}/filter"));
        assert_eq!(
            filter,
            r#"device=="0000:5e:00.0" || device=="fe300000.mmc""#
        );
        assert_eq!(ran.setting(&format!("events/{event}/enable")), "1");
    }
    // the switch of all would record the nameless as well
    assert_eq!(ran.setting("events/dma/enable"), "0");
    let bad = kernel.run(&["--device", "5e:00.0\" || 1"]);
    assert_eq!(bad.output.status.code(), Some(2), "{}", bad.err());
    assert!(kernel.instances().is_empty());
}

#[test]
fn a_kernel_without_dma_events_has_others() {
    let mut text = String::new();
    for n in 0..5_u64 {
        let (first, end) = (0xfff0_0000 + n * 0x1000, 0xfff0_1000 + n * 0x1000);
        let head = format!("  x-1  [000] ..... {}.000000:", n + 1);
        text += &format!(
            "{head} map: IOMMU: iova=0x{first:016x} - 0x{end:016x} paddr=0x00005000 size=4096\n"
        );
        if n < 3 {
            text += &format!(
                "{head} unmap: IOMMU: iova=0x{first:016x} - 0x{end:016x} size=4096 unmapped_size=4096\n"
            );
        }
    }
    let kernel = Kernel::new(&IOMMU, &text);
    let ran = kernel.run(&["--seconds", "0.1", "-o", "t.trace", "--json"]);
    assert_eq!(ran.json()["recorded"], "iommu:map and iommu:unmap");
    assert!(
        ran.err().contains("do not say of which device"),
        "{}",
        ran.err()
    );
    assert_eq!(counts(&kernel.path("t.trace")), (5, 3));
    let enabled = IOMMU.map(|event| ran.setting(&format!("events/{event}/enable")));
    assert_eq!(enabled, ["0", "1", "1"]);
    assert_eq!(ran.setting("events/iommu/enable"), "0");
    let said = kernel.run(&["--device", "5e:00.0"]).fails();
    assert!(said.contains("have no field `device`"), "{said}");
    assert!(kernel.instances().is_empty());
}

/// The kernel has no name yet for a task that has not been switched from.
#[test]
fn tasks_are_named_by_what_the_kernel_saved() {
    let text = mappings(6, 3);
    let unnamed = text
        .replace("x [0]: y-17", "<...>-17")
        .replace("d.h2.", ".....");
    assert_ne!(unnamed, text);
    let kernel = Kernel::new(&DMA, &unnamed);
    put(&kernel.path("tracing/saved_cmdlines"), "1 init\n17 my dd\n");
    let ran = kernel.run(&["--seconds", "0.1", "-o", "t.trace"]);
    assert_eq!(ran.err(), "");
    let trace = fs::read_to_string(kernel.path("t.trace")).unwrap();
    let stamps: Vec<&str> = trace
        .lines()
        .filter(|line| line.starts_with("# at "))
        .collect();
    assert!(
        !stamps.is_empty() && stamps.iter().all(|line| line.ends_with(" my dd")),
        "{trace}"
    );
}
