// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A front end whose memory is not what it seems: huge pages of which there are none left, or that
//! are shared in part; files whose server never answers. The device stops or the table is refused,
//! nothing stays mapped, the process lives, and the next front end is served.

use crate::common::{huge::*, raw::*, waiting::*, *};
use ioatlas_dma::units::*;
use ioatlas_vhost::{
    protocol::{
        memory::{Files, Shrink},
        message::Header,
    },
    runner::End,
    server::*,
};
use std::{fs::File, os::fd::OwnedFd, path::PathBuf, time::Duration};

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
        let back = Back::new(patient().shrink(shrink));
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

/// A path beside other things that these tests build, which no other process has.
fn own_file(name: &str) -> PathBuf {
    let name = format!("{name}-{}", std::process::id());
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// A file of [`MEMORY`] bytes there; it has no name any more.
fn file_on_a_disk(name: &str) -> File {
    let at = own_file(name);
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true);
    let file = options.open(&at).unwrap();
    std::fs::remove_file(&at).unwrap();
    file.set_len(MEMORY).unwrap();
    file
}

/// A regular file that is in no memory of files, wherever these tests are built.
fn file_of_the_kernel() -> File {
    File::open("/sys/kernel/mm/transparent_hugepage/enabled")
        .or_else(|_| File::open("/sys/devices/system/cpu/online"))
        .unwrap()
}

#[test]
fn files_that_are_not_in_memory_are_refused() {
    log_to_stderr();
    /// `TMPFS_MAGIC` of `linux/magic.h`.
    const TMPFS: u32 = 0x0102_1994;
    let on_disk = file_on_a_disk("refused");
    let in_memory = rustix::fs::fstatfs(&on_disk).unwrap().f_type as u32 == TMPFS;
    let mut files = vec![file_of_the_kernel()];
    files.extend((!in_memory).then_some(on_disk));
    for file in files {
        let back = Back::new(patient());
        let mut raw = Raw::negotiate(&back, WITH_IOMMU);
        // the next is for itself: files are seen before their message is the next
        raw.ask(GET_FEATURES, &[], &[]);
        let table = Raw::table(&[[AT, 0x1000, 0x7000_0000, 0]]);
        let taken = raw.ask(SET_MEM_TABLE, &table, &[&file.into()]);
        assert_eq!(
            taken, 1,
            "P11: a fault may wait for its file system for ever"
        );
        drop(raw);
        serves_another(&back);
        let End::Broken(why) = &back.ends()[0] else {
            panic!("nothing was broken");
        };
        assert!(
            why.to_string().contains("not of a regular file in memory"),
            "P11: its file system was asked, which may never answer: {why}"
        );
    }
}

#[test]
fn files_on_a_disk_are_taken_on_demand() {
    log_to_stderr();
    let back = Back::new(patient().files(Files::Any));
    let regions = vec![(GUEST, ByteCount(MEMORY), file_on_a_disk("taken"))];
    let (config, table) = (front_config(WITH_IOMMU), PageMap::default());
    let mut front = FrontEnd::connect(back.socket(), config, regions, table).unwrap();
    is_served(&mut front, b"on a disk");
}

#[test]
#[ignore = "needs root and /dev/fuse: ci/full.sh silent-files"]
fn a_file_whose_server_never_answers_delays_nothing() {
    log_to_stderr();
    let mut system = Silent::new(own_file("silent"), SOON * 2);
    let file = system.file();
    let back = Back::new(patient());
    // The first of two, so that the other is closed without having been looked at.
    let mut raw = Raw::negotiate(&back, WITH_IOMMU);
    let regions = [
        [AT, 0x1000, 0x7000_0000, 0],
        [AT + 0x1000, 0x1000, 0x7000_1000, 0],
    ];
    let table = Raw::table(&regions);
    raw.ask(GET_FEATURES, &[], &[]);
    assert_eq!(raw.ask(SET_MEM_TABLE, &table, &[&file, &file]), 1);
    drop(raw);
    serves_another(&back);
    // One region more than there may be.
    let mut raw = with_slots(&back);
    let page = memory(0x1000);
    for slot in 0..=509 {
        let at = slot * 0x1000;
        let payload = words(&[0, AT + at, 0x1000, 0x7000_0000 + at, 0]);
        let (file, code) = if slot < 509 { (&page, 0) } else { (&file, 1) };
        assert_eq!(raw.ask(ADD_MEM_REG, &payload, &[file]), code, "{slot}");
    }
    drop(raw);
    serves_another(&back);
    // Before our own descriptor, whose end would be waited for, too.
    assert!(!system.end(), "the back end waited for the file's server");
}

/// Messages that `vhost` refuses with their files, or has no use for: how many files each has.
fn messages_with_files() -> Vec<(u32, Vec<u8>, usize)> {
    let region = words(&[0, AT, 0x1000, 0x7000_0000, 0]);
    vec![
        (SET_VRING_KICK, words(&[0]), 1),
        (SET_VRING_KICK, words(&[0]), 2),
        (SET_VRING_CALL, words(&[0x100]), 1),
        (SET_VRING_ERR, words(&[0]), 32),
        // more than `vhost` takes
        (SET_VRING_ERR, words(&[0]), 40),
        (IOTLB, vec![0; 32], 1),
        (SET_BACKEND_REQ_FD, vec![], 1),
        (GET_FEATURES, vec![], 1),
        (
            SET_MEM_TABLE,
            Raw::table(&[[AT, 0x1000, 0x7000_0000, 0]]),
            2,
        ),
        (SET_MEM_TABLE, Raw::table(&[[AT, 0, 0x7000_0000, 0]]), 1),
        (ADD_MEM_REG, region.clone(), 2),
        (REM_MEM_REG, region, 1),
        (SET_LOG_BASE, words(&[0x1000, 0]), 1),
        (99, vec![], 1),
    ]
}

/// When a message with files comes.
#[derive(Clone, Copy, Debug)]
enum Comes {
    /// While another front end is served, with all messages before it.
    Early,
    /// When all before it have been answered.
    Late,
}

/// Sends them, each to a back end of its own, and with it files. What becomes of them here, `ours`
/// says; the back end has not seen those that come early then.
fn delay_nothing(
    comes: Comes,
    mut file: impl FnMut() -> OwnedFd,
    mut ours: impl FnMut(Vec<OwnedFd>),
) {
    for (request, payload, files) in messages_with_files() {
        let back = Back::new(patient());
        let before = matches!(comes, Comes::Early).then(|| Raw::connect(&back));
        let mut raw = Raw::connect(&back);
        raw.send(SET_OWNER, &[], &[]);
        raw.send(GET_FEATURES, &[], &[]);
        raw.send(
            SET_PROTOCOL_FEATURES,
            &words(&[1 << 3 | 1 << 5 | 1 << 15]),
            &[],
        );
        if let Comes::Late = comes {
            raw.code(&Header::request(GET_FEATURES, 0));
            raw.ask(GET_FEATURES, &[], &[]);
        }
        let sent: Vec<_> = (0..files).map(|_| file()).collect();
        raw.send(request, &payload, &sent.iter().collect::<Vec<_>>());
        ours(sent);
        drop(before);
        drop(raw);
        serves_another(&back);
        assert_bad_files(back, &format!("request {request} with {files} files"));
    }
}

/// The back end has said why it hung up.
fn assert_bad_files(back: Back, what: &str) {
    let ends = back.ends();
    let why = ends.iter().find_map(|end| match end {
        End::Broken(why) => Some(why.to_string()),
        _ => None,
    });
    let says = |why: &String| why.starts_with("a message with a file");
    assert!(why.as_ref().is_some_and(says), "{what}: {why:?}");
}

/// In a message of two pieces: each piece with files of its own, or the second alone.
fn in_pieces_delay_nothing(mut file: impl FnMut() -> OwnedFd, mut ours: impl FnMut(Vec<OwnedFd>)) {
    let event = memory(0x1000);
    for first in [&[][..], &[&event]] {
        for request in [SET_VRING_KICK, IOTLB] {
            let payload = vec![0; if request == IOTLB { 32 } else { 8 }];
            let back = Back::new(patient());
            let raw = Raw::negotiate(&back, WITH_IOMMU);
            raw.bytes(&Header::request(request, payload.len()).encode(), first);
            // taken for the whole, if anything is
            std::thread::sleep(Duration::from_millis(20));
            let sent = file();
            match raw.try_bytes(&payload, &[&sent]) {
                Ok(()) => ours(vec![sent]),
                // it has hung up already, and this is the last
                Err(_) => std::mem::forget(sent),
            }
            drop(raw);
            serves_another(&back);
            assert_bad_files(back, &format!("request {request} after {}", first.len()));
        }
    }
}

/// In a message that is not read, since the one before ends the connection.
fn unread_delay_nothing(mut file: impl FnMut() -> OwnedFd, mut ours: impl FnMut(Vec<OwnedFd>)) {
    let back = Back::new(patient());
    let before = Raw::connect(&back);
    let raw = Raw::connect(&back);
    let sent = file();
    raw.bytes(&[0xff; 12], &[]);
    raw.send(GET_FEATURES, &[], &[&sent]);
    ours(vec![sent]);
    drop(before);
    drop(raw);
    serves_another(&back);
}

#[test]
fn sockets_that_linger_delay_nothing() {
    log_to_stderr();
    let mut lingering = Lingering::new(SOON * 2);
    // The last descriptors are not ours, whose end would be waited for here.
    delay_nothing(Comes::Early, || lingering.socket(), drop);
    unread_delay_nothing(|| lingering.socket(), drop);
    in_pieces_delay_nothing(|| lingering.socket(), drop);
}

#[test]
#[ignore = "needs root and /dev/fuse: ci/full.sh silent-files"]
fn messages_whose_file_never_answers_delay_nothing() {
    log_to_stderr();
    let mut system = Silent::new(own_file("refused-silent"), SOON * 2);
    let mut kept = Vec::new();
    for comes in [Comes::Early, Comes::Late] {
        delay_nothing(comes, || system.file(), |ours| kept.extend(ours));
    }
    unread_delay_nothing(|| system.file(), |ours| kept.extend(ours));
    in_pieces_delay_nothing(|| system.file(), |ours| kept.extend(ours));
    assert!(!system.end(), "the back end waited for the file's server");
}
