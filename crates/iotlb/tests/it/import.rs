// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Captures by real tools, several of one run where they can be compared; and what must not pass
//! for a capture.

use ioatlas_iotlb::import::{AssignIovas, Assume, Capture, Format, Identity, Options, load};
use ioatlas_iotlb::{Event, Kind, Limits, Topic, Trace};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    std::fs::read(path).unwrap()
}

fn options(assume: Assume) -> Options {
    Options {
        assume,
        ..Options::default()
    }
}

fn imported(name: &str, assume: Assume) -> Trace {
    load(
        name,
        &fixture(name).as_slice(),
        options(assume),
        Limits::default(),
    )
    .unwrap()
}

fn text(text: &str, assume: Assume) -> Trace {
    load("t", &text.as_bytes(), options(assume), Limits::default()).unwrap()
}

fn complaint(text: &str) -> String {
    let result = load("t", &text.as_bytes(), Options::default(), Limits::default());
    result.expect_err(text).to_string()
}

fn noted(trace: &Trace, topic: Topic) -> u64 {
    let note = trace.notes().iter().find(|note| note.topic == topic);
    note.map_or(0, |note| note.count)
}

/// The lines of a trace, without those that say how it was made.
fn lines(trace: &Trace) -> Vec<String> {
    let line = |event: &Event| {
        let device = trace.device_name(event.device());
        ioatlas_iotlb::Line {
            device,
            event: *event,
        }
        .to_string()
    };
    trace.events().iter().map(line).collect()
}

#[test]
fn perf_and_ftrace_of_one_run_are_one_trace() {
    for (ftrace, perf) in [
        ("ftrace-pipe-6.12.txt.zst", "perf-6.12.txt.zst"),
        ("ftrace-pipe-off-6.12.txt.zst", "perf-off-6.12.txt.zst"),
    ] {
        let (ftrace, perf) = (
            imported(ftrace, Assume::Unmap),
            imported(perf, Assume::Unmap),
        );
        assert!(noted(&ftrace, Topic::Ftrace) > 2000 && noted(&perf, Topic::Perf) > 2000);
        assert!(ftrace.info().anomalies.is_empty() && perf.info().anomalies.is_empty());
        // perf ran a little longer, and their clocks order CPUs a little differently
        let mut left = BTreeMap::new();
        for map in maps(&perf) {
            *left.entry(map).or_insert(0) += 1;
        }
        for map in maps(&ftrace) {
            let count = left.get_mut(&map).filter(|count| **count > 0);
            *count.unwrap_or_else(|| panic!("{map}")) -= 1;
        }
        assert!(left.values().sum::<u64>() < 10);
    }
}

/// The maps of a trace, without their IOVAs.
fn maps(trace: &Trace) -> Vec<String> {
    let without_iova = |line: String| {
        let fields: Vec<&str> = line.split(' ').collect();
        (fields[0] == "M").then(|| [&fields[1..2], &fields[3..]].concat().join(" "))
    };
    lines(trace).into_iter().filter_map(without_iova).collect()
}

#[test]
fn both_interfaces_of_the_kernel_unmap_the_same_pages() {
    let dma = imported("ftrace-pipe-6.12.txt.zst", Assume::None);
    let iommu = imported("ftrace-iommu-6.12.txt.zst", Assume::None);
    let unmapped = |trace: &Trace| -> Vec<(u64, u64)> {
        let unmap = |event: &Event| match event {
            Event::Unmap { range, .. } => Some((range.first().number(), range.last().number())),
            _ => None,
        };
        trace.events().iter().filter_map(unmap).collect()
    };
    assert!(unmapped(&dma).len() > 1000);
    let (mut dma, mut iommu) = (unmapped(&dma), unmapped(&iommu));
    dma.sort_unstable();
    iommu.sort_unstable();
    assert_eq!(dma, iommu);
    // but only one knows devices and kinds
    let dma = imported("ftrace-pipe-6.12.txt.zst", Assume::None).info();
    let kinds = &dma.devices[1].kinds;
    assert_eq!(
        (dma.devices.len(), kinds.alloc, kinds.not_recorded),
        (2, 2, 0)
    );
    let iommu = imported("ftrace-iommu-6.12.txt.zst", Assume::None);
    assert_eq!(noted(&iommu, Topic::DeviceUnknown), 1532);
    assert_eq!(noted(&iommu, Topic::KindUnknown), 1532);
}

#[test]
fn the_emulator_sees_accesses_only_where_the_kernel_maps() {
    let kernel = imported("ftrace-virtio-iommu-6.12.txt.zst", Assume::None);
    let unit = imported("qemu-virtio-iommu.log.zst", Assume::None);
    let info = unit.info();
    assert!(info.anomalies.is_empty(), "{info:?}");
    assert_eq!(noted(&unit, Topic::Interrupts), 33);
    let nic = |info: &ioatlas_iotlb::TraceInfo, name: &str| {
        let device = info.devices.iter().find(|device| device.device == name);
        let device = device.unwrap().clone();
        (device.maps, device.unmaps)
    };
    let (maps, unmaps) = nic(&kernel.info(), "0000:00:04.0");
    // the unit's log goes on until the machine is off, the kernel's ends before
    let (unit_maps, unit_unmaps) = nic(&info, "00:04.0");
    assert!((maps..maps + 5).contains(&unit_maps), "{maps} {unit_maps}");
    assert!(unit_unmaps >= unmaps);
    let accesses: u64 = info.devices.iter().map(|device| device.accesses).sum();
    assert_eq!(accesses, 3898);
}

#[test]
fn vt_d_logs_have_mappings_from_first_use_to_invalidation() {
    let unit = imported("qemu-vtd.log.zst", Assume::Unmap);
    let kernel = imported("ftrace-pipe-6.12.txt.zst", Assume::None);
    assert_eq!(unit.info().anomalies, Default::default());
    assert_eq!(noted(&unit, Topic::MappedAtAccess), 2037);
    // there are accesses, so none are assumed
    assert_eq!(noted(&unit, Topic::AccessesAtUnmap), 0);
    let pages = |trace: &Trace| -> BTreeSet<u64> {
        let page = |event: &Event| match event {
            Event::Unmap { range, .. } => Some(range.first().number()..=range.last().number()),
            _ => None,
        };
        trace.events().iter().filter_map(page).flatten().collect()
    };
    let (seen, made) = (pages(&unit), pages(&kernel));
    // the log goes on until the machine is off; and not every page that is mapped is used
    let both = seen.intersection(&made).count();
    assert!(
        both * 10 > made.len() * 9,
        "{both} of {} and {}",
        seen.len(),
        made.len()
    );
}

#[test]
fn without_an_iommu_each_mapping_gets_pages_of_its_own() {
    let off = imported("ftrace-pipe-off-6.12.txt.zst", Assume::Unmap);
    assert_eq!(noted(&off, Topic::IovasAssigned), 1550);
    assert!(off.info().anomalies.is_empty());
    // memory is kept, so that a policy that maps it onto itself can be replayed
    let known = |event: &Event| match event {
        Event::Map { phys, .. } => phys.is_some(),
        _ => true,
    };
    assert!(off.events().iter().all(known));
    // as it stands in the capture, buffers share pages
    let bytes = fixture("ftrace-pipe-off-6.12.txt.zst");
    let never = Options {
        assign: AssignIovas::Never,
        ..options(Assume::None)
    };
    let as_is = load("t.zst", &bytes.as_slice(), never, Limits::default()).unwrap();
    assert_eq!(noted(&as_is, Topic::IovasAssigned), 0);
    assert!(noted(&as_is, Topic::Overtaken) > 100);
    // with an IOMMU nothing is assigned
    let on = imported("ftrace-pipe-6.12.txt.zst", Assume::None);
    assert_eq!(noted(&on, Topic::IovasAssigned), 0);
}

#[test]
fn newer_kernels_and_lost_events() {
    let new = imported("ftrace-7.2.txt.zst", Assume::None).info();
    assert_eq!(
        (new.devices[0].kinds.sg, new.devices[1].kinds.page),
        (79, 744)
    );
    let lost = imported("ftrace-lost-6.12.txt.zst", Assume::Unmap);
    assert_eq!(noted(&lost, Topic::Lost), 583 + 2946);
    assert!(noted(&lost, Topic::MappedBefore) > 0 && lost.info().anomalies.is_empty());
    let old = imported("ftrace-iommu-6.1.txt.zst", Assume::Unmap);
    assert_eq!(noted(&old, Topic::Ftrace), 2555);
}

#[test]
fn times_and_cpus_are_kept() {
    let trace = imported("ftrace-7.2.txt.zst", Assume::None);
    let stamps = trace.stamps();
    assert!(
        stamps
            .windows(2)
            .all(|pair| pair[0].stamp.nanoseconds <= pair[1].stamp.nanoseconds)
    );
    assert!(
        stamps
            .windows(2)
            .all(|pair| pair[0].time < pair[1].time && pair[0].stamp != pair[1].stamp)
    );
    let cpus: BTreeSet<_> = stamps.iter().map(|stamped| stamped.stamp.cpu).collect();
    assert_eq!(cpus, [Some(0), Some(1)].into());
    assert_eq!(stamps[0].time.0, 0);
}

const MAP: &str = "  x-1  [000] ..... 1.000001: dma_map_page: d dir=TO_DEVICE dma_addr=1000 size=8192 phys_addr=7000 attrs=\n";

#[test]
fn accesses_are_assumed_before_unmaps_or_after_maps() {
    let unmap = "  x-1  [001] ..... 1.000002: dma_unmap_page: d dir=TO_DEVICE dma_addr=1000 size=8192 attrs=\n";
    let alloc = "  x-1  [000] ..... 1.000000: dma_alloc: d dma_addr=9000 size=10 virt_addr=0 flags= attrs=\n";
    let free =
        "  x-1  [000] ..... 1.000003: dma_free: d dma_addr=9000 size=10 virt_addr=0 attrs=\n";
    let capture = [alloc, MAP, unmap, free].concat();
    let a = ["A d 1 r", "A d 2 r"];
    let (ma, m, u, ua) = (
        "M d 9 1 rw - alloc 0+10",
        "M d 1 2 r 7 page 0+8192",
        "U d 1 2",
        "U d 9 1",
    );
    let found = |assume| lines(&text(&capture, assume));
    assert_eq!(found(Assume::None), [ma, m, u, ua]);
    assert_eq!(found(Assume::Unmap), [ma, m, a[0], a[1], u, ua]);
    assert_eq!(found(Assume::Map), [ma, m, a[0], a[1], u, ua]);
    // that the CPU got the buffer shows that the device was there, and then the unmap shows nothing
    // more
    let sync = "  x-1  [000] ..... 1.0000015: dma_sync_single_for_cpu: d dir=TO_DEVICE dma_addr=1010 size=8\n";
    let again = "  x-1  [000] ..... 1.0000016: dma_map_page: d dir=TO_DEVICE dma_addr=5000 size=1 phys_addr=1 attrs=\n";
    let capture = [MAP, sync, again, unmap].concat();
    assert_eq!(
        lines(&text(&capture, Assume::Unmap)),
        [m, a[0], "M d 5 1 r 0 page 0+1", a[1], u]
    );
    // a trace gets them as well, and says so
    let trace = "# ioatlas-trace 1\n# at 5 0\nM d 1 2 w\n# mark 1\nU d 1 1\n";
    let assumed = text(trace, Assume::Unmap);
    assert_eq!(lines(&assumed), ["M d 1 2 w", "A d 1 w", "U d 1 1"]);
    assert_eq!(
        (
            assumed.marks()[0].time.0,
            noted(&assumed, Topic::AccessesAtUnmap)
        ),
        (1, 1)
    );
    assert_eq!(lines(&assumed.without_accesses()), ["M d 1 2 w", "U d 1 1"]);
}

#[test]
fn events_are_put_in_order_of_time() {
    let unmap = "  x-1  [001] ..... 1.000009: dma_unmap_page: d dir=TO_DEVICE dma_addr=1000 size=8192 attrs=\n";
    let ordered = text(&[unmap, MAP].concat(), Assume::None);
    assert_eq!(lines(&ordered), ["M d 1 2 r 7 page 0+8192", "U d 1 2"]);
    // an unmap that is reported after the next map of its range ends the mapping before it, not the
    // new one
    let again = MAP.replace("1.000001", "1.000008");
    let overtaken = text(&[MAP, &again, unmap].concat(), Assume::None);
    let m = "M d 1 2 r 7 page 0+8192";
    assert_eq!(lines(&overtaken), [m, "U d 1 2", m]);
    assert_eq!(noted(&overtaken, Topic::Overtaken), 1);
}

#[test]
fn lists_are_unmapped_by_their_memory() {
    let map = "  x-1  [000] ..... 1.1: dma_map_sg: d dir=FROM_DEVICE nents=3/3 ents=2/2 dma_addrs={0x1000,0x9000} \
               sizes={0x2000,0x800} phys_addrs={0x70000,0x90000,0x20000} attrs=\n";
    let unmap = "  x-1  [000] ..... 1.2: dma_unmap_sg: d dir=FROM_DEVICE phys_addrs={0x70000,0x90000,0x20000} attrs=\n";
    // as many entries as pages: each entry is one
    let maps = [
        "M d 1 1 w 70 sg 0+4096",
        "M d 2 1 w 90 sg 0+4096",
        "M d 9 1 w 20 sg 0+2048",
    ];
    let found = lines(&text(&[map, unmap, unmap].concat(), Assume::None));
    assert_eq!(found[..3], maps);
    assert_eq!(found[3..], ["U d 1 2", "U d 9 1"]);
    // fewer entries than pages: which page is where is not known
    let unclear = map.replace("0x2000,", "0x4000,");
    let trace = text(&unclear, Assume::None);
    assert_eq!(lines(&trace)[0], "M d 1 4 w - sg 0+16384");
    assert_eq!(noted(&trace, Topic::PhysUnknown), 2);
    let cut = map.replace("ents=2/2", "ents=2/200 [TRUNCATED]");
    assert_eq!(noted(&text(&cut, Assume::None), Topic::ListsCut), 1);
}

#[test]
fn csv_of_spreadsheets_is_read() {
    let plain = "event,device,iova,bytes\nmap,nic,4096,100\nunmap,nic,4096,100\n";
    let expected = lines(&text(plain, Assume::None));
    assert_eq!(expected.len(), 2);
    let semicolons = plain.replace(',', ";").replace('\n', "\r\n");
    for like in [
        format!("\u{feff}{plain}"),
        format!("\u{feff}{semicolons}"),
        semicolons,
    ] {
        assert_eq!(lines(&text(&like, Assume::None)), expected, "{like:?}");
    }
    let mark_alone = complaint("\u{feff}");
    assert!(mark_alone.starts_with("t:1:1: "), "{mark_alone}");
}

#[test]
fn csv_says_what_its_columns_are() {
    let csv = "time_ns,event,device,iova,bytes,direction,kind,phys\n\
               5,map,nic,0x1000,100,w,page,0x7000\n6,access,nic,4097,,w,,\n7,unmap,nic,0x1000,100,,,\n";
    let trace = text(csv, Assume::Unmap);
    assert_eq!(
        lines(&trace),
        ["M nic 1 1 w 7 page 0+100", "A nic 1 w", "U nic 1 1"]
    );
    assert_eq!(noted(&trace, Topic::Csv), 3);
    for (bad, expected) in [
        (
            "event,device,iova,bytes,colour\n",
            "t:1:25: unknown column `colour`",
        ),
        (
            "event,device,iova\nmap,d,1\n",
            "t:2:8: no column of the first line is named: bytes",
        ),
        (
            "event,device,iova,bytes\nmap,d,1,\n",
            "t:2:9: missing field: bytes",
        ),
        (
            "op;device;addr\n",
            "t:1:1: no column of the first line is named: event, iova",
        ),
        (
            "event,device,iova,bytes\nmap,d,1,x\n",
            "t:2:9: bad number `x`",
        ),
        (
            "event,device,iova,bytes\nmap,d,1\n",
            "t:2:1: 3 columns, expected 4",
        ),
        (
            "event,device,iova,bytes\nmap,a b,1,2\n",
            "t:2:5: bad device `a b`",
        ),
        (
            "event,device,iova,bytes\nfree,d,1,2\n",
            "t:2:1: unknown event `free`",
        ),
    ] {
        let found = complaint(bad);
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn what_is_no_capture_is_said_to_be_none() {
    let found = complaint("hello\nworld\n");
    assert!(
        found.starts_with("t:1:1: not a trace") && found.contains("dma:*"),
        "{found}"
    );
    let forced = |format, text: &str| {
        let options = Options {
            from: Some(format),
            ..Options::default()
        };
        load("t", &text.as_bytes(), options, Limits::default())
    };
    for format in [Format::Ftrace, Format::Perf, Format::Qemu] {
        let found = forced(format, "hello\nworld\n")
            .expect_err("no event")
            .to_string();
        let expected = format!("t: no event in 2 lines; expected, as {format}: ");
        assert!(found.starts_with(&expected), "{found}");
    }
    let found = forced(Format::Csv, "hello\n")
        .expect_err("no header")
        .to_string();
    assert!(found.starts_with("t:1:1: expected a first line"), "{found}");
    // among events, lines that mean nothing are counted
    let trace = text(&format!("hello\n{MAP}# comment\n"), Assume::None);
    assert_eq!(noted(&trace, Topic::UnknownLines), 1);
}

#[test]
fn events_that_are_not_known_are_named() {
    let ftrace = |event: &str| format!("  x-1  [000] ..... 1.000001: {event}: some=thing\n");
    let perf = |event: &str| format!("  x y  1/2 [000]  1.000001:  7 {event}: some=thing\n");
    let map = "x 1 [000] 1.000001: dma:dma_map_page: d dir=TO_DEVICE dma_addr=1000 size=8192 phys_addr=7000 attrs=\n";
    let events = |event: &dyn Fn(&str) -> String, system: &str| {
        let switch = event(&format!("{system}sched_switch"));
        let future = event(if system.is_empty() {
            "dma_map_future"
        } else {
            "dma:dma_map_future"
        });
        switch.repeat(3) + &future.repeat(4) + "no event at all\n"
    };
    for (capture, said) in [
        (
            events(&ftrace, "") + MAP,
            "4 dma_map_future, 3 sched_switch",
        ),
        (
            events(&perf, "sched:") + map,
            "4 dma_map_future, 3 sched:sched_switch",
        ),
    ] {
        let trace = text(&capture, Assume::None);
        assert_eq!(trace.not_understood(), Some(said));
        assert_eq!(noted(&trace, Topic::UnknownLines), 8);
        // lines that name no event are shown as they are
        let bytes = capture.as_bytes();
        let mut converted = String::new();
        let mut capture =
            Capture::new("t", &bytes, options(Assume::None), Limits::default()).unwrap();
        capture.read_to_string(&mut converted).unwrap();
        assert_eq!(capture.samples(), [said, "line 8: no event at all"]);
        assert!(converted.contains(&format!("\n# not understood: {said}\n")));
    }
    // so many names, and the rest together
    let many: String = (0..10).map(|n| ftrace(&format!("event_{n}"))).collect();
    let trace = text(&(many + MAP), Assume::None);
    let said = trace.not_understood().unwrap();
    assert!(said.ends_with(", 1 event_7, 2 others"), "{said}");
    assert_eq!(text(MAP, Assume::None).not_understood(), None);
}

#[test]
fn of_a_binary_capture_it_is_said_what_prints_it() {
    // the second field is the size of the header
    let perf = |magic: &str, size: u64| [magic.as_bytes(), &size.to_le_bytes()].concat();
    for (bytes, command) in [
        (perf("PERFILE2", 104), "`perf script -i FILE |"),
        (perf("PERFFILE", 104), "`perf script -i FILE |"),
        (
            perf("2ELIFREP", 104u64.swap_bytes()),
            "`perf script -i FILE |",
        ),
        (perf("PERFILE2", 16), "`perf script -i - <FILE |"),
        (
            b"\x17\x08\x44tracing6\0\0\x08".to_vec(),
            "`trace-cmd report FILE |",
        ),
    ] {
        for from in [None, Some(Format::Ftrace), Some(Format::Perf)] {
            let options = Options {
                from,
                ..Options::default()
            };
            let error = load("t.dat", &bytes.as_slice(), options, Limits::default());
            let said = error.expect_err("binary").to_string();
            let expected = format!("{command} ioatlas report -`");
            assert!(
                said.starts_with("t.dat: ") && said.ends_with(&expected),
                "{said}"
            );
        }
    }
}

#[test]
fn known_events_that_do_not_read_are_errors_with_a_place() {
    for (from, to, expected) in [
        ("size=8192 ", "", "missing field: size"),
        (
            "dma_addr=1000",
            "dma_addr=10x0",
            "t:1:69: bad number `10x0`",
        ),
        ("TO_DEVICE", "UP", "t:1:50: unknown direction `UP`"),
        ("page: d dir", "page: dir", "missing field: device"),
    ] {
        let found = complaint(&MAP.replace(from, to));
        assert!(found.contains(expected), "{found}");
    }
    // a tracer that was killed leaves half a line
    let cut = &MAP[..MAP.len() - 30];
    let trace = text(&format!("{MAP}{cut}"), Assume::None);
    assert_eq!(
        (trace.events().len(), noted(&trace, Topic::CutLine)),
        (1, 1)
    );
}

#[test]
fn hostile_numbers_cost_little() {
    let huge = MAP
        .replace("size=8192", "size=18446744073709547520")
        .replace("=1000", "=0");
    let unmap = "  x-1  [001] ..... 1.1: dma_unmap_page: d dir=TO_DEVICE dma_addr=0 size=18446744073709547520 attrs=\n";
    let trace = text(&[&huge, unmap].concat(), Assume::Unmap);
    assert_eq!(trace.events().len(), 2 + (1 << 16));
    assert_eq!(
        noted(&trace, Topic::AccessesLeftOut),
        (1 << 52) - 1 - (1 << 16)
    );
    let failed = MAP.replace("dma_addr=1000", "dma_addr=ffffffffffffffff");
    let wraps = MAP.replace("dma_addr=1000", "dma_addr=fffffffffffff000");
    let trace = text(&[&failed, &wraps, MAP].concat(), Assume::None);
    assert_eq!((trace.events().len(), noted(&trace, Topic::Failed)), (1, 2));
}

/// The text that a capture becomes.
pub fn converted(bytes: &[u8], identity: Identity, assume: Assume) -> String {
    let options = Options {
        assume,
        identity,
        ..Options::default()
    };
    let mut text = String::new();
    let mut capture = Capture::new("t", &bytes, options, Limits::default()).unwrap();
    capture.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_converted_capture_is_the_trace_that_is_loaded() {
    for name in [
        "ftrace-7.2.txt.zst",
        "perf-off-6.12.txt.zst",
        "qemu-vtd.log.zst",
    ] {
        let text = converted(&fixture(name), Identity::Kept, Assume::default());
        let read = Trace::read("t", text.as_bytes(), Limits::default()).unwrap();
        let loaded = load(
            "t",
            &fixture(name).as_slice(),
            Options::default(),
            Limits::default(),
        );
        assert!(read == loaded.unwrap(), "{name}");
    }
    // a trace stays as it is, comments and all
    let trace =
        "# ioatlas-trace 2\n# by hand\n# at 5 0\nM d 1 1 r 7 sg\n# mark 2\nA d 1 ?\nU d 1 1\n";
    assert_eq!(
        converted(trace.as_bytes(), Identity::Kept, Assume::default()),
        trace
    );
}

#[test]
fn an_anonymous_trace_tells_nothing_but_what_results_need() {
    let trace = "# ioatlas-trace 1\n# by hand\n# at 500 3\nM nic 1 1 r 70203 sg\nA nic 1 ?\n# mark secret\n# at 700 3\n\
                 M disk 9 2 rw 70bff alloc\nM nic 2 1 r 401 page\nM nic 3 1 w\n# note lost-events 3\n";
    let expected = "# ioatlas-trace 2\n# at 0 3\nM dev0 1 1 r 203 sg\nA dev0 1 ?\n# at 200 3\nM dev1 9 2 rw bff alloc\n\
                    M dev0 2 1 r 1001 page\nM dev0 3 1 w\n# note lost-events 3\n# note anonymized 2\n";
    // blocks 0x381, 0x385 and 0x386, 0x2: numbers 1, 3 and 4, 6 would do; runs begin at 1 with a
    // block between
    let found = converted(trace.as_bytes(), Identity::Removed, Assume::default());
    assert_eq!(found.lines().count(), expected.lines().count(), "{found}");
    let kept = |line: &str| !line.starts_with('M') || line.split(' ').count() < 6;
    for (found, expected) in found.lines().zip(expected.lines()).filter(|(_, e)| kept(e)) {
        assert_eq!(found, expected);
    }
    let phys = |text: &str| -> Vec<u64> {
        let field = |line: &str| u64::from_str_radix(line.split(' ').nth(5)?, 16).ok();
        text.lines()
            .filter(|line| line.starts_with('M'))
            .filter_map(field)
            .collect()
    };
    let (old, new) = (phys(trace), phys(&found));
    assert_eq!(new.len(), 3);
    for (old, new) in old.iter().zip(&new) {
        assert_eq!(old & 0x1ff, new & 0x1ff);
        assert_ne!(old, new);
    }
    let kinds = |event: &Event| {
        matches!(
            event,
            Event::Map {
                kind: Some(Kind::Alloc),
                ..
            }
        )
    };
    let read = Trace::read("t", found.as_bytes(), Limits::default()).unwrap();
    assert_eq!(read.events().iter().filter(|event| kinds(event)).count(), 1);
}
