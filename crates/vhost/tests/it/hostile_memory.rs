// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A front end whose memory is not what it seems: huge pages of which there are none left, or that are shared in part. The device
//! stops or the table is refused, nothing stays mapped, the process lives, and the next front end is served.

use crate::common::{raw::*, *};
use ioatlas_dma::units::*;
use ioatlas_vhost::{
    protocol::{memory::Shrink, message::Header},
    runner::Config,
    server::*,
};
use rustix::fs::{FlockOperation, MemfdFlags, SealFlags};
use std::fs::File;
use vm_memory::{FileOffset, MmapRegion};

/// Where huge memory is for the guest, behind its other memory.
const AT: u64 = 0x4000_0000;
const FROM: u64 = GUEST + 0x10_0000;
const TO: u64 = GUEST + 0x20_0000;

/// Another front end is served, without a wait for what the one before left.
#[track_caller]
fn serves_another(back: &Back) {
    let mut front = front_end(back, front_config(WITH_IOMMU));
    is_served(&mut front, b"the next front end");
}

/// The device inverts `bytes` for this front end.
#[track_caller]
fn is_served(front: &mut FrontEnd<PageMap>, bytes: &[u8]) {
    map(front, FROM, FROM, 0x1000, Perm::Read);
    map(front, TO, TO, 0x1000, Perm::Write);
    let mut driver = Driver::by_iova(front, 0);
    let got = driver.invert(front, (FROM, FROM), (TO, TO), bytes);
    assert_eq!(got, inverted(bytes));
}

/// A file of huge pages, and the length of one.
fn huge_file(name: &str, pages: u64, sealed: Sealed) -> (File, u64) {
    let flags = MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let file = File::from(rustix::fs::memfd_create(name, flags).unwrap());
    let page = rustix::fs::fstat(&file).unwrap().st_blksize as u64;
    file.set_len(pages * page).unwrap();
    if sealed == Sealed::Yes {
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    }
    (file, page)
}

/// Mappings of a `memfd` of this name.
fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let name = format!("/memfd:{name} (deleted)");
    maps.lines().filter(|line| line.ends_with(&name)).count()
}

/// A session in which regions can be added one by one.
fn with_slots(back: &Back) -> Raw {
    let mut raw = Raw::connect(back);
    raw.send(SET_OWNER, &[], &[]);
    raw.send(GET_FEATURES, &[], &[]);
    raw.code(&Header::request(GET_FEATURES, 0));
    let bits = 1 << 3 | 1 << 5 | 1 << 15;
    raw.send(SET_PROTOCOL_FEATURES, &words(&[bits]), &[]);
    raw
}

/// The kernel maps such a part as a whole page, and never unmaps the part.
#[test]
fn parts_of_huge_pages_are_refused() {
    log_to_stderr();
    let back = Back::new(patient());
    for sealed in [Sealed::Yes, Sealed::No] {
        let name = format!("parts-{sealed:?}");
        let (file, page) = huge_file(&name, 2, sealed);
        let file = file.into();
        for (offset, len) in [(0, 0x1000), (0, page + 0x1000), (0x1000, page)] {
            for request in [SET_MEM_TABLE, ADD_MEM_REG] {
                let mut raw = with_slots(&back);
                let region = [AT, len, 0x7000_0000, offset];
                let payload = match request {
                    SET_MEM_TABLE => Raw::table(&[region]),
                    _ => [words(&[0]), words(&region)].concat(),
                };
                let code = raw.ask(request, &payload, &[&file]);
                drop(raw);
                serves_another(&back);
                assert_eq!(mappings(&name), 0, "mappings outlive a session");
                assert_eq!(code, 1, "{len:#x} bytes at {offset:#x}: {sealed:?}");
            }
        }
    }
}

/// All huge pages that nothing has reserved, so that there are none for anybody else. The pool is the machine's; whoever runs these
/// tests at the same time waits.
struct Drained {
    _pages: Vec<MmapRegion<()>>,
    _alone: File,
}

impl Drained {
    fn new() -> Self {
        /// More than this would take too long.
        const MOST: usize = 1 << 14;
        let path = std::env::temp_dir().join("ioatlas-huge-pages.lock");
        let mut options = File::options();
        let made = options.create(true).truncate(false).write(true).open(&path);
        // Another user's can be read.
        let alone = made.or_else(|_| File::open(&path)).unwrap();
        rustix::fs::flock(&alone, FlockOperation::LockExclusive).unwrap();
        let mut pages = Vec::new();
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        loop {
            // A mapping reserves its page.
            let (file, page) = huge_file("drained", 1, Sealed::No);
            let page = page as usize;
            match MmapRegion::build(Some(FileOffset::new(file, 0)), page, access, shared) {
                Ok(region) => pages.push(region),
                Err(_) => break,
            }
            assert!(pages.len() < MOST, "more than {MOST} huge pages");
        }
        Drained {
            _pages: pages,
            _alone: alone,
        }
    }
}

/// A page that does not exist yet has to come from the pool, whatever seals its file has.
#[test]
fn huge_pages_that_run_out_stop_the_device_and_not_the_process() {
    log_to_stderr();
    let _drained = Drained::new();
    let cases = [
        (Sealed::No, Shrink::Survive),
        (Sealed::Yes, Shrink::Survive),
        (Sealed::Yes, Shrink::DemandSeal),
    ];
    for (sealed, shrink) in cases {
        let back = Back::new(Config {
            shrink,
            ..patient()
        });
        let ordinary = memory_file(ByteCount(MEMORY), Sealed::Yes).unwrap();
        let (huge, page) = huge_file("exhausted", 1, sealed);
        let regions = vec![
            (GUEST, ByteCount(MEMORY), ordinary),
            (AT, ByteCount(page), huge),
        ];
        let config = front_config(WITH_IOMMU);
        let table = PageMap::default();
        let mut front = FrontEnd::connect(back.socket(), config, regions, table).unwrap();
        map(&front, AT, AT, 0x1000, Perm::Read);
        let mut driver = Driver::by_iova(&mut front, 0);
        driver.descriptor(&front, 0, (AT, 8, Way::Read), None);
        driver.offer(&front, 0);
        let why = back.why_stopped();
        assert!(why.contains("guest memory is gone"), "{why}");
        drop(front);
        serves_another(&back);
    }
}
