// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What traces say of bytes and tasks, from captures and by themselves.

use ioatlas_iotlb::import::{AssignIovas, Assume, Identity, Options, load};
use ioatlas_iotlb::{Event, Limits, Trace};
use std::path::Path;

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    std::fs::read(path).unwrap()
}

/// The trace that a capture becomes, without accesses.
fn trace(bytes: &[u8], assign: AssignIovas) -> Trace {
    let options = Options {
        assume: Assume::None,
        assign,
        ..Options::default()
    };
    load("t", &bytes, options, Limits::default()).unwrap()
}

/// The text that it becomes.
fn converted(bytes: &[u8], identity: Identity) -> String {
    crate::import::converted(bytes, identity, Assume::None)
}

/// The lines M of a text.
fn maps(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with('M')).collect()
}

/// Bytes of the maps of a trace, in order.
fn bytes(trace: &Trace) -> Vec<Option<u64>> {
    let is_map = |event: &&Event| matches!(event, Event::Map { .. });
    let maps = trace.events().iter().filter(is_map);
    maps.map(Event::bytes).collect()
}

/// The names of the tasks of all stamps, in order.
fn tasks(trace: &Trace) -> Vec<Option<&str>> {
    let name = |stamped: &ioatlas_iotlb::Stamped| Some(trace.task_name(stamped.stamp.task?));
    trace.stamps().iter().map(name).collect()
}

const BUFFERS: &str = "\
  a-1 [000] ..... 1.1: dma_map_page: d dir=TO_DEVICE dma_addr=1042 size=66 phys_addr=7042 attrs=
  a-1 [000] ..... 1.2: dma_map_page: d dir=TO_DEVICE dma_addr=3fff size=2 phys_addr=9fff attrs=
  a-1 [000] ..... 1.3: dma_alloc: d dma_addr=6000 size=4097 virt_addr=0 flags= attrs=
";

#[test]
fn a_buffer_keeps_its_place_in_its_pages() {
    let text = converted(BUFFERS.as_bytes(), Identity::Kept);
    let expected = [
        "M d 1 1 r 7 page 66+66",
        "M d 3 2 r 9 page 4095+2",
        "M d 6 2 rw - alloc 0+4097",
    ];
    assert_eq!(maps(&text), expected);
    // also on pages of other numbers
    let assigned = trace(BUFFERS.as_bytes(), AssignIovas::Always);
    assert_eq!(bytes(&assigned), [Some(66), Some(2), Some(4097)]);
    let extents = assigned.events().iter().map(|event| match event {
        Event::Map { range, extent, .. } => (range.pages().0, extent.unwrap().offset()),
        other => panic!("{other:?}"),
    });
    assert_eq!(extents.collect::<Vec<_>>(), [(1, 66), (2, 4095), (2, 0)]);
}

#[test]
fn entries_of_a_list_keep_their_places() {
    let list = |addresses: &str, sizes: &str, phys: &str| {
        let (ents, nents) = (addresses.split(',').count(), phys.split(',').count());
        let list = format!(
            "  a-1 [000] ..... 1.1: dma_map_sg: d dir=FROM_DEVICE nents={nents}/{nents} ents={ents}/{ents} \
             dma_addrs={{{addresses}}} sizes={{{sizes}}} phys_addrs={{{phys}}} attrs=\n"
        );
        converted(list.as_bytes(), Identity::Kept)
    };
    // each entry a segment
    assert_eq!(
        maps(&list("0x1200,0x9000", "0x600,0x1001", "0x70200,0x90000")),
        ["M d 1 1 w 70 sg 512+1536", "M d 9 2 w 90 sg 0+4097"]
    );
    // three entries of a page each in one segment
    assert_eq!(
        maps(&list("0x1200", "0x2100", "0x70200,0x90000,0x20000")),
        [
            "M d 1 1 w 70 sg 512+3584",
            "M d 2 1 w 90 sg 0+4096",
            "M d 3 1 w 20 sg 0+768"
        ]
    );
    // two entries somewhere in three pages
    assert_eq!(
        maps(&list("0x1200", "0x2100", "0x70200,0x90000")),
        ["M d 1 3 w - sg 512+8448"]
    );
    // on pages of ours: memory addresses, as no IOMMU translates
    let off = list("0x70200,0x90000", "0x600,0x1001", "0x70200,0x90000");
    let extents: Vec<&str> = maps(&off)
        .into_iter()
        .map(|map| map.rsplit(' ').next().unwrap())
        .collect();
    assert_eq!(extents, ["512+1536", "0+4097"]);
    assert!(off.contains("# note iovas-assigned 2"), "{off}");
}

#[test]
fn what_maps_whole_pages_says_no_bytes() {
    for (name, known) in [
        ("ftrace-pipe-6.12.txt.zst", true),
        ("ftrace-pipe-off-6.12.txt.zst", true),
        ("perf-6.12.txt.zst", true),
        ("ftrace-iommu-6.12.txt.zst", false),
        ("ftrace-iommu-6.1.txt.zst", false),
        ("qemu-vtd.log.zst", false),
        ("qemu-virtio-iommu.log.zst", false),
    ] {
        let bytes = bytes(&trace(&fixture(name), AssignIovas::Auto));
        assert!(bytes.len() > 500, "{name}");
        assert!(bytes.iter().all(|map| map.is_some() == known), "{name}");
    }
}

#[test]
fn captures_of_real_kernels_say_their_tasks() {
    // ftrace says what is an interrupt's, perf does not
    let of_ftrace = &["softirq", "hardirq"][..];
    for (name, some) in [
        ("ftrace-pipe-6.12.txt.zst", of_ftrace),
        ("ftrace-iommu-6.12.txt.zst", of_ftrace),
        ("perf-6.12.txt.zst", &["cat", "ksoftirqd/1", "swapper"][..]),
    ] {
        let trace = trace(&fixture(name), AssignIovas::Auto);
        let tasks = tasks(&trace);
        // ftrace forgot the names of some that ended
        let named = tasks.iter().flatten().count();
        assert!(named * 10 > tasks.len() * 8, "{name}: {named}");
        for task in some {
            assert!(tasks.contains(&Some(*task)), "{name}: {task}: {tasks:?}");
        }
        let names: Vec<&str> = trace.tasks().map(|task| trace.task_name(task)).collect();
        assert!((5..20).contains(&names.len()), "{name}: {names:?}");
        assert!(!names.contains(&"<...>"), "{name}");
    }
    // a log of QEMU knows none
    let qemu = trace(&fixture("qemu-vtd.log.zst"), AssignIovas::Auto);
    assert_eq!(qemu.tasks().len(), 0);
}

#[test]
fn csv_may_name_the_task() {
    let csv = "event,device,iova,bytes,time_ns,cpu,task\n\
               map,nic,0x1040,1500,5,0,my task\nmap,nic,0x3000,1,6,0,\nunmap,nic,0x3000,1,7,1,a-1\n";
    let read = trace(csv.as_bytes(), AssignIovas::Auto);
    assert_eq!(tasks(&read), [Some("my task"), None, Some("a-1")]);
    assert_eq!(bytes(&read), [Some(1500), Some(1)]);
}

#[test]
fn a_cpu_that_was_not_recorded_is_not_known() {
    let perf = "x 17 1.000002: dma:dma_map_page: d dir=TO_DEVICE dma_addr=1000 size=2 phys_addr=7000 attrs=\n";
    let csv = "event,device,iova,bytes,time_ns\nmap,d,4096,1,5\n";
    for capture in [perf, csv] {
        let read = trace(capture.as_bytes(), AssignIovas::Auto);
        assert_eq!(read.stamps()[0].stamp.cpu, None, "{capture}");
        assert_eq!(read.clock().unwrap().cpus, None, "{capture}");
    }
}

/// All that format 2 has; as written by this crate.
const TRACE: &str = "# ioatlas-trace 2
# by hand
# at 5 0 kworker/0:1
M nic 1 2 r 70203 sg 4095+2
# at 6 1 a name, of words
M nic 3 1 w - - 64+1500
A nic 1 r
# at 7 -
M disk 4 1 rw - alloc
# at 8 1 kworker/0:1
U nic 1 2
";

#[test]
fn a_converted_trace_stays_as_it_is() {
    assert_eq!(converted(TRACE.as_bytes(), Identity::Kept), TRACE);
    for name in [
        "ftrace-7.2.txt.zst",
        "ftrace-lost-6.12.txt.zst",
        "ftrace-iommu-6.1.txt.zst",
        "perf-off-6.12.txt.zst",
        "qemu-vtd.log.zst",
        "qemu-virtio-iommu.log.zst",
    ] {
        let once = converted(&fixture(name), Identity::Kept);
        let twice = converted(once.as_bytes(), Identity::Kept);
        assert!(once == twice, "{name}");
    }
}

#[test]
fn anonymous_traces_keep_bytes_and_rename_tasks() {
    let text = converted(TRACE.as_bytes(), Identity::Removed);
    for name in ["kworker", "words", "nic", "disk", "by hand"] {
        assert!(!text.contains(name), "{text}");
    }
    let extents: Vec<&str> = maps(&text)
        .into_iter()
        .map(|map| map.rsplit(' ').next().unwrap())
        .collect();
    assert_eq!(extents, ["4095+2", "64+1500", "alloc"]);
    let read = Trace::read("t", text.as_bytes(), Limits::default()).unwrap();
    let renamed = [Some("task0"), Some("task1"), None, Some("task0")];
    assert_eq!(tasks(&read), renamed);
}

#[test]
fn traces_of_format_1_are_read_as_before() {
    let old = "# ioatlas-trace 1\n# at 5 0\nM d 1 1 r 7 sg\n# at 6 1\nU d 1 1\n# at x\n";
    let read = Trace::read("t", old.as_bytes(), Limits::default()).unwrap();
    let stamps: Vec<_> = read.stamps().iter().map(|stamped| stamped.stamp).collect();
    let times: Vec<_> = stamps.iter().map(|s| (s.nanoseconds, s.cpu)).collect();
    assert_eq!(times, [(5, Some(0)), (6, Some(1))]);
    assert_eq!((tasks(&read), bytes(&read)), (vec![None; 2], vec![None]));
    // the same but for the first line
    let new = converted(old.as_bytes(), Identity::Kept);
    assert_eq!(new, old.replace("trace 1", "trace 2"));
}

#[test]
fn tasks_are_bounded_in_number_and_length() {
    let most = 1 << 16;
    let mut text = String::from("# ioatlas-trace 2\n");
    for n in 0..most + 2 {
        text += &format!("# at {n} 0 t{n}\nA d 1 r\n");
    }
    text += "# at 999999 0 t7\nA d 1 r\n";
    let read = Trace::read("t", text.as_bytes(), Limits::default()).unwrap();
    let names = tasks(&read);
    assert_eq!(read.tasks().len(), most);
    assert_eq!(names[most - 1], Some("t65535"));
    assert_eq!(names[most..], [None, None, Some("t7")]);

    for (length, named) in [(64, true), (65, false)] {
        let name = "n".repeat(length);
        let text = format!("# ioatlas-trace 2\n# at 1 0 {name}\nA d 1 r\n");
        let read = Trace::read("t", text.as_bytes(), Limits::default()).unwrap();
        assert_eq!(tasks(&read)[0].is_some(), named, "{length}");
    }
}
