// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A runner against what is wrong around it: connections that say nothing, threads that panic,
//! descriptors that run out or must not be kept.

use crate::common::{raw::*, *};
use ioatlas_dma::units::*;
use ioatlas_vhost::{cache::*, protocol::message::Header, runner::*, server::*};
use rustix::fs::OFlags;
use std::{
    fs::File,
    io::{Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    process::Command,
    sync::Arc,
    time::Duration,
};
use vhost::vhost_user::Backend;

/// How long what must not come is waited for.
const A_WHILE: Duration = Duration::from_secs(1);

fn runner<D: Device>(device: D, config: Config) -> Runner<D, RadixIotlb> {
    let limits = Limits::default().readers(2);
    Runner::new(device, RadixIotlb::new(limits), config).unwrap()
}

fn inverter() -> Inverter {
    Inverter {
        stopped: Arc::default(),
    }
}

/// Stops the runner also where a test fails, which would wait for its thread for ever.
struct Stopping(StopHandle);

impl Drop for Stopping {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Listens at a path of its own.
fn listener(name: &str) -> (PathBuf, Listener) {
    let name = format!("ioatlas-{name}-{}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let listener = Listener::bind(&path, Stale::Replace).unwrap();
    (path, listener)
}

fn asks_for_features(mut stream: &UnixStream) -> std::io::Result<()> {
    let question = Header::request(GET_FEATURES, 0).encode();
    stream.write_all(&question)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.read_exact(&mut [0; 20])
}

/// As many as there may be regions, each would be a descriptor less for the whole process.
#[test]
fn files_of_guest_memory_are_not_kept_open() {
    let back = Back::new(patient());
    let mut raw = Raw::negotiate(&back, WITH_IOMMU);
    let name = "kept-or-not";
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = File::from(rustix::fs::memfd_create(name, flags).unwrap());
    file.set_len(0x10000).unwrap();
    let file = OwnedFd::from(file);
    let table = Raw::table(&[[0, 0x10000, 0x7000_0000, 0]]);
    assert_eq!(raw.ask(SET_MEM_TABLE, &table, &[&file]), 0);
    let shown = format!("/memfd:{name} (deleted)");
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = fds.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let open = links.filter(|link| link.to_string_lossy() == shown).count();
    assert_eq!(open, 1, "a descriptor for each region");
}

/// Set in the process that the next test starts, which has few descriptors.
const HAS_FEW_DESCRIPTORS: &str = "IOATLAS_TEST_HAS_FEW_DESCRIPTORS";

#[test]
fn a_front_end_that_finds_no_descriptor_is_served_when_there_is_one() {
    if std::env::var_os(HAS_FEW_DESCRIPTORS).is_some() {
        return without_descriptors();
    }
    let this = "serving::a_front_end_that_finds_no_descriptor_is_served_when_there_is_one";
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 128 && exec \"$0\" \"$@\""]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", this, "--nocapture"]);
    let output = command.env(HAS_FEW_DESCRIPTORS, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{failed}");
    assert!(said.contains("1 passed"), "{said}{failed}");
    let told = said.matches("cannot accept a connection").count();
    assert_eq!(told, 1, "once for all attempts: {said}");
}

fn without_descriptors() {
    log_to_stderr();
    let (path, listener) = listener("few-descriptors");
    let mut runner = runner(inverter(), patient());
    let stopping = Stopping(runner.stop_handle());
    let (one, other) = (unconnected(), unconnected());
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    assert!(taken.len() < 128, "descriptors are not limited");
    std::thread::scope(|scope| {
        let stopping = stopping;
        let served = scope.spawn(|| runner.serve(listener.socket()));
        let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
        rustix::net::connect(&one, &address).unwrap();
        std::thread::sleep(A_WHILE);
        assert!(!served.is_finished(), "it serves nothing any more");
        // Enough for the connection, and not for its session.
        drop(taken.pop());
        std::thread::sleep(A_WHILE);
        assert!(!served.is_finished(), "it serves nothing any more");
        drop(taken);
        let one = UnixStream::from(one);
        asks_for_features(&one).unwrap();
        drop(one);
        rustix::net::connect(&other, &address).unwrap();
        asks_for_features(&other.into()).unwrap();
        drop(stopping);
        served.join().unwrap().unwrap();
    });
}

fn unconnected() -> OwnedFd {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
}

/// What `/proc` says of each descriptor of this process that has `id` in its description, but for
/// `ours`.
fn infos(id: &str, ours: &OwnedFd) -> Vec<String> {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = fds.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let names = names.filter(|name| *name != ours.as_raw_fd().to_string());
    let texts = names.filter_map(|name| info(&name));
    texts.filter(|text| text.contains(id)).collect()
}

fn info(fd: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()
}

fn is_inherited(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = u32::from_str_radix(flags.unwrap().trim(), 8).unwrap();
    flags & OFlags::CLOEXEC.bits() == 0
}

#[test]
fn events_are_not_inherited_by_programs() {
    let back = Back::new(patient());
    let mut raw = Raw::negotiate(&back, WITH_IOMMU);
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    let event = rustix::event::eventfd(0, flags).unwrap();
    for request in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
        assert_eq!(raw.ask(request, &words(&[0]), &[&event]), 0);
    }
    let ours = info(&event.as_raw_fd().to_string()).unwrap();
    let id = ours
        .split_inclusive('\n')
        .find(|line| line.starts_with("eventfd-id"));
    let infos = infos(id.expect("a kernel that numbers events"), &event);
    assert_eq!(infos.len(), 3, "{infos:?}");
    assert!(!infos.iter().any(|info| is_inherited(info)), "{infos:?}");
}

/// Keeps the back channel.
struct Keeper(std::sync::Mutex<Option<Backend>>);

impl Device for Keeper {
    fn queues(&self) -> u16 {
        1
    }
    fn features(&self) -> u64 {
        0
    }
    fn back_channel(&self, backend: Backend) {
        *self.0.lock().unwrap() = Some(backend);
    }
    fn process<R: IotlbReader>(&self, _: Event, _: &mut QueueWorker<R>) -> Result<Next, Failure> {
        Ok(Next::Wait)
    }
}

#[test]
fn the_back_channel_is_not_inherited_by_programs() {
    let back = Back::of(Keeper(Default::default()), patient());
    let mut raw = Raw::negotiate(&back, WITH_IOMMU);
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let theirs = OwnedFd::from(theirs);
    assert_eq!(raw.ask(SET_BACKEND_REQ_FD, &[], &[&theirs]), 0);
    let ours = info(&theirs.as_raw_fd().to_string()).unwrap();
    // The file system and the inode in it.
    let id = ours.find("mnt_id:").map(|at| &ours[at..]);
    let id = id.map(|id| id.split_inclusive('\n').take(2).collect::<String>());
    let id = id.expect("a file system");
    assert!(id.contains("ino:"), "a kernel that tells inodes: {ours}");
    let infos = infos(&id, &theirs);
    // One for misses, one to change, and the device's.
    assert!(infos.len() >= 2, "{infos:?}");
    assert!(!infos.iter().any(|info| is_inherited(info)), "{infos:?}");
}

/// Panics when a queue is kicked.
struct Faulty;

impl Device for Faulty {
    fn queues(&self) -> u16 {
        2
    }
    fn features(&self) -> u64 {
        0
    }
    fn queues_per_thread(&self) -> Vec<u64> {
        vec![1, 2]
    }
    fn process<R: IotlbReader>(&self, _: Event, _: &mut QueueWorker<R>) -> Result<Next, Failure> {
        panic!("not what a device should do");
    }
}

#[test]
fn a_thread_that_panics_ends_the_runner_and_is_told_of() {
    log_to_stderr();
    let (path, listener) = listener("panics");
    let mut runner = runner(Faulty, patient());
    let stopping = Stopping(runner.stop_handle());
    std::thread::scope(|scope| {
        let _stopping = stopping;
        let served = scope.spawn(|| runner.serve(listener.socket()));
        let file = memory_file(ByteCount(MEMORY), Sealed::Yes).unwrap();
        let regions = vec![(GUEST, ByteCount(MEMORY), file)];
        let stream = UnixStream::connect(&path).unwrap();
        let (config, table) = (front_config(WITH_IOMMU), PageMap::default());
        let mut front = FrontEnd::connect(stream, config, regions, table).unwrap();
        map(&front, GUEST + IOVA, GUEST, 0x3000, Perm::ReadWrite);
        let at = GUEST + IOVA;
        let ring = RingAddresses {
            descriptors: at,
            driver: at + 0x1000,
            device: at + 0x2000,
        };
        // The device is called as soon as the queue is live: the connection may end before this is
        // answered.
        let started = front.start_queue(0, SIZE, ring, 0);
        println!("{:?}", started.map(drop));
        eventually("the runner ends", || served.is_finished().then_some(()));
        let why = served.join().unwrap().unwrap_err().to_string();
        assert_eq!(
            why,
            "a queue's thread panicked: not what a device should do"
        );
    });
}

#[test]
fn a_connection_that_says_nothing_does_not_keep_others_out() {
    log_to_stderr();
    let (path, listener) = listener("silent");
    let config = Config::default().message(A_WHILE);
    let mut runner = runner(inverter(), config);
    let stopping = Stopping(runner.stop_handle());
    std::thread::scope(|scope| {
        let stopping = stopping;
        let served = scope.spawn(|| runner.serve(listener.socket()));
        let silent = UnixStream::connect(&path).unwrap();
        // Its own first word may be late, too, where this thread is kept from writing it.
        let other = eventually("another is served", || {
            let other = UnixStream::connect(&path).ok()?;
            asks_for_features(&other).ok().map(|()| other)
        });
        // One that has said something may be silent for longer.
        std::thread::sleep(3 * A_WHILE);
        asks_for_features(&other).unwrap();
        drop(stopping);
        served.join().unwrap().unwrap();
        drop(silent);
    });
}
