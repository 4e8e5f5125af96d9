// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A log of a real guest, shortened, and logs made up line by line for what it does not hold.

use super::*;

/// A boot of Linux 6.1 with an e1000, `-d cpu -msg timestamp=on`: most pages left out, lines as
/// they were.
const REAL: &[u8] = include_bytes!("../../../tests/data/qemu-vtd-e1000.log");
const REAL_SYMBOLS: &str = include_str!("../../../tests/data/qemu-vtd-e1000.kallsyms");

fn symbols() -> Symbols {
    Symbols::from_kallsyms(REAL_SYMBOLS).unwrap()
}

/// Lines of the trace, and the counts.
fn convert(log: &[u8]) -> Result<(Vec<String>, Counts), QemuError> {
    let mut lines = Vec::new();
    let mut importer = QemuLog::new(symbols());
    let mut out = |item: Item<'_>| {
        lines.push(item.to_string());
        Ok(())
    };
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        importer.line(line, &mut out)?;
    }
    let counts = importer.finish(&mut out)?;
    Ok((lines, counts))
}

/// Registers at the entry of a function of the guest.
struct Entry {
    function: Function,
    stack: u64,
    /// RDI, RSI, RDX, RCX, R8, R9
    arguments: [u64; 6],
    per_cpu: u64,
}

const DOMAIN: u64 = 0xffff_8880_0522_c7d0;
const STACK: u64 = 0xffff_c900_0059_f808;

fn entry(function: Function, arguments: [u64; 6]) -> Entry {
    let (stack, per_cpu) = (STACK, 0xffff_8880_1f00_0000);
    Entry {
        function,
        stack,
        arguments,
        per_cpu,
    }
}

/// `map_pages` of pages on to pages, with these permission bits.
fn map(page: u64, phys: u64, pages: u64, permission: u64) -> Entry {
    let arguments = [DOMAIN, page << 12, phys << 12, 4096, pages, permission];
    entry(Function::MapPages, arguments)
}

fn unmap(page: u64, pages: u64) -> Entry {
    entry(
        Function::UnmapPages,
        [DOMAIN, page << 12, 4096, pages, 0, 0],
    )
}

fn access(source: u16, page: u64, phys: u64) -> String {
    let entry = phys << 12 | 3;
    format!(
        "vtd_iotlb_page_hit IOTLB page hit sid {source:#x} iova {page:#x}00c slpte {entry:#x} domain 0x3\n"
    )
}

impl Entry {
    fn text(&self) -> String {
        let (at, _) = symbols()
            .0
            .into_iter()
            .find(|s| s.1 == self.function)
            .unwrap();
        let [rdi, rsi, rdx, rcx, r8, r9] = self.arguments;
        let (rsp, gs) = (self.stack, self.per_cpu);
        format!(
            "RAX={at:016x} RBX={0:016x} RCX={rcx:016x} RDX={rdx:016x}\n\
             RSI={rsi:016x} RDI={rdi:016x} RBP={0:016x} RSP={rsp:016x}\n\
             R8 ={r8:016x} R9 ={r9:016x} R10={0:016x} R11={0:016x}\n\
             R12={0:016x} R13={0:016x} R14={0:016x} R15={0:016x}\n\
             RIP={at:016x} RFL=00000286 [--S--P-] CPL=0 II=0 A20=1 SMM=0 HLT=0\n\
             FS =0000 {0:016x} 00000000 00000000\n\
             GS =0000 {gs:016x} 00000000 00000000\n",
            0
        )
    }
}

#[test]
fn a_real_log_becomes_its_trace() {
    let (lines, counts) = convert(REAL).unwrap();
    let wanted = "\
# at 58112000 0
M 00:04.0 fffff 1 rw 638e alloc
M 00:04.0 ffffe 1 rw 638a alloc
M 00:04.0 ffffd 1 w 6127 page
M 00:04.0 ffff8 2 w 6125 page
M 00:04.0 ffe8b 1 w 618d page
M 00:04.0 ffe59 1 r 6225 page
A 00:04.0 fffff ?
A 00:04.0 ffe59 r
A 00:04.0 fffff ?
# at 8862244000 0
U 00:04.0 ffe59 1
# at 8863183000 0
M 00:04.0 ffe59 1 r 1fd4e page
A 00:04.0 fffff ?
A 00:04.0 ffe59 r
A 00:04.0 fffff ?
# at 8999047000 0
U 00:04.0 ffe59 1
A 00:04.0 ffffe ?
A 00:04.0 ffffd w
A 00:04.0 ffffe ?
A 00:04.0 ffffe ?
# at 10025824000 0
U 00:04.0 ffffd 1
# at 11329392000 0
U 00:04.0 ffff8 2
# at 11329595000 0
U 00:04.0 ffe8b 1";
    assert_eq!(lines.join("\n"), wanted);
    // the ISA bridge's 4096 pages are counted and left out; one map is dumped twice
    let all = Counts {
        maps: 8,
        mapped_pages: 4096 + 8,
        unmaps: 5,
        unmapped_pages: 6,
        accesses: 10,
        invalidations: 4,
        faults: 0,
        direct_maps: 1,
        direct_pages: 4096,
        direct_accesses: 0,
        repeated_dumps: 1,
    };
    assert_eq!(counts, all);
}

#[test]
fn a_log_cut_anywhere_gives_a_beginning_of_the_trace() {
    let events = |lines: Vec<String>| -> Vec<String> {
        let events = lines.iter().filter(|line| !line.starts_with('#'));
        // of a device whose first access is cut off
        let named = |line: &String| line.replace("domain1", "00:04.0");
        events.map(named).collect()
    };
    let whole = events(convert(REAL).unwrap().0);
    for cut in (0..REAL.len()).step_by(7) {
        let (lines, _) = convert(&REAL[..cut]).unwrap();
        assert!(whole.starts_with(&events(lines)), "cut at {cut}");
    }
}

#[test]
fn a_map_has_the_kind_of_the_call_around_it_not_of_an_interrupt() {
    let call = |function, stack| Entry {
        stack,
        ..entry(function, [0; 6])
    };
    let at = |stack, map: Entry| Entry { stack, ..map };
    let interrupt = 0xffff_c900_0000_4f00;
    let log = [
        call(Function::DmaMapSg, STACK + 0x100),
        at(STACK, map(0xff0, 0x10, 1, 1)),
        // on the interrupt's stack, in the midst of the list
        call(Function::DmaMapPage, interrupt),
        at(interrupt - 0x80, map(0xfe0, 0x20, 1, 2)),
        at(STACK, map(0xff1, 0x30, 1, 1)),
        // a later call whose frame is where the list's was
        call(Function::DmaAlloc, STACK + 0x180),
        at(STACK, map(0xfd0, 0x40, 1, 3)),
    ];
    let log: String = log.iter().map(Entry::text).collect();
    let (lines, _) = convert((log + &access(0x20, 0xff0, 0x10)).as_bytes()).unwrap();
    assert_eq!(
        lines,
        [
            "M 00:04.0 ff0 1 r 10 sg",
            "M 00:04.0 fe0 1 w 20 page",
            "M 00:04.0 ff1 1 r 30 sg",
            "M 00:04.0 fd0 1 rw 40 alloc",
            "A 00:04.0 ff0 r",
        ]
    );
}

#[test]
fn what_is_mapped_onto_itself_is_left_out_with_its_accesses() {
    let log = map(0xfebfc, 0xfebfc, 2, 3).text()
        + &map(0xfff, 0x77, 1, 3).text()
        + &access(0x30, 0xfff, 0x77)
        + &access(0x30, 0xfebfd, 0xfebfd)
        + &unmap(0xfff, 1).text();
    let (lines, counts) = convert(log.as_bytes()).unwrap();
    assert_eq!(
        lines,
        [
            "M 00:06.0 fff 1 rw 77",
            "A 00:06.0 fff ?",
            "U 00:06.0 fff 1"
        ]
    );
    assert_eq!((counts.direct_maps, counts.direct_pages), (1, 2));
    assert_eq!((counts.accesses, counts.direct_accesses), (2, 1));
}

#[test]
fn the_same_map_again_after_its_unmap_is_no_repetition() {
    let mut moved = map(0xfff, 0x77, 1, 1);
    moved.per_cpu += 0x8_0000;
    let log = map(0xfff, 0x77, 1, 1).text()
        + &map(0xfff, 0x77, 1, 1).text() // a repetition
        + &moved.text() // another, on the CPU that the task was moved to
        + &unmap(0xfff, 1).text()
        + &unmap(0xfff, 1).text() // a repetition
        + &map(0xfff, 0x77, 1, 1).text()
        + &map(0xfff, 0x78, 1, 1).text(); // not the same
    let (lines, counts) = convert((log + &access(0, 0xfff, 0x78)).as_bytes()).unwrap();
    let letters: Vec<&str> = lines.iter().map(|line| &line[..1]).collect();
    assert_eq!(letters, ["M", "U", "M", "M", "A"]);
    assert_eq!(counts.repeated_dumps, 3);
}

#[test]
fn two_devices_that_map_the_same_page_are_told_apart_by_where_it_leads() {
    let other = DOMAIN + 0x500;
    let mut second = map(0xfff, 0x88, 1, 2);
    second.arguments[0] = other;
    let mut second_cpu = unmap(0xfff, 1);
    second_cpu.per_cpu += 0x8_0000;
    let log = map(0xfff, 0x77, 1, 1).text()
        + &second.text()
        + &access(0x28, 0xfff, 0x88)
        + "9@1.000002:port92_write port92: write 0x06\n"
        + &access(0x20, 0xfff, 0x77)
        + "9@1.000005:vtd_inv_desc_iotlb_pages iotlb invalidate domain 0x1 addr 0x0 mask 0x0\n"
        + &second_cpu.text();
    let (lines, _) = convert(log.as_bytes()).unwrap();
    assert_eq!(
        lines,
        [
            "M 00:04.0 fff 1 r 77",
            "M 00:05.0 fff 1 w 88",
            "A 00:05.0 fff w",
            "# mark 1",
            "A 00:04.0 fff r",
            "# at 3000 1",
            "U 00:04.0 fff 1",
        ]
    );
}

#[test]
fn a_domain_that_is_not_accessed_does_not_hold_back_the_rest_for_ever() {
    let mut log = map(0xfff, 0x77, 1, 3).text();
    let mut other = map(0xfff, 0x88, 1, 3);
    other.arguments[0] += 8;
    log += &other.text();
    for _ in 0..HELD_MOST {
        log += &access(0x28, 0xfff, 0x88);
    }
    let mut given = 0;
    let mut importer = QemuLog::new(symbols());
    let mut most_held = 0;
    for line in log.split_inclusive('\n') {
        let mut count = |_: Item<'_>| {
            given += 1;
            Ok(())
        };
        importer.line(line.as_bytes(), &mut count).unwrap();
        most_held = most_held.max(importer.held.len());
    }
    assert_eq!(most_held, HELD_MOST);
    assert_eq!(importer.domains[0].name, "domain0");
    assert_eq!(given, HELD_MOST + 2);
}

#[test]
fn what_makes_no_sense_is_refused_with_its_line() {
    let refused = |log: &str| convert(log.as_bytes()).unwrap_err().to_string();
    let hit = "vtd_iotlb_page_hit IOTLB page hit sid 0x20 iova 0x1000 domain 0x3\n";
    let said = refused(&format!("noise\n{hit}"));
    assert_eq!(
        said,
        "line 2: vtd_iotlb_page_hit: slpte is missing or not a number"
    );
    let said = refused("port92_write port92: write 6\n");
    assert_eq!(
        said,
        "line 1: port92_write: value is missing or not a number"
    );
    let said = refused(&map(0xfff, 0x77, 0, 1).text());
    assert_eq!(
        said,
        "line 7: intel_iommu_map_pages: 0 pages from address 0xfff000 are no range"
    );
    let said = refused(&unmap((1 << 52) - 1, 2).text());
    assert!(said.contains("2 pages from address"), "{said}");
    let said = refused(&unmap(5, u64::MAX).text());
    assert!(said.contains("are no range"), "{said}");
    let said = refused(&map(0xfff, 0x77, 1, 4).text());
    assert!(said.contains("permission is missing"), "{said}");
    let domains: String = (0..=DOMAINS_MOST as u64)
        .map(|domain| {
            let mut map = map(0xfff, 0x77, 1, 1);
            map.arguments[0] += domain;
            map.text()
        })
        .collect();
    let said = refused(&domains);
    assert!(said.ends_with("more than 4096 domains"), "{said}");
}

#[test]
fn symbols_that_are_missing_or_hidden_are_named() {
    let without = REAL_SYMBOLS.replace("iommu_dma_map_sg", "iommu_dma_map_sg_attrs");
    let error = Symbols::from_kallsyms(&without).unwrap_err();
    assert_eq!(error, MissingSymbol(Function::DmaMapSg));
    let hidden = REAL_SYMBOLS.replace("ffffffff816da7c0", "0000000000000000");
    let error = Symbols::from_kallsyms(&hidden).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no address of intel_iommu_map_pages in the kernel's symbols"
    );
    assert_eq!(
        symbols().dfilter(),
        "0xffffffff816da7c0+1,0xffffffff816da1e0+1,0xffffffff816e8ff0+1,0xffffffff816e8d90+1,0xffffffff816e9250+1"
    );
}
