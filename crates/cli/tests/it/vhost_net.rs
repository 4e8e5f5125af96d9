// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas vhost-net`, the program itself: driven through its socket by a front end with rings by
//! IOVA, ended by signals, given what it cannot take.

#[path = "../../../vhost-net/tests/it/common/mod.rs"]
pub(crate) mod common;

use crate::by_hand;
use common::{driver::*, front::*, guest::*, nic::*};
use ioatlas_dma::units::*;
use ioatlas_vhost::server::Answer;
use ioatlas_vhost_net::Wakeup;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The program, running.
pub(crate) struct Program {
    child: Option<Child>,
    directory: TempDir,
}

impl Program {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Program::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    pub(crate) fn start_in(directory: TempDir, arguments: &[&str]) -> Self {
        let child = command(&directory.path().join("socket"), arguments).spawn();
        Program {
            child: Some(child.unwrap()),
            directory,
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Its number; it runs.
    pub(crate) fn pid(&mut self) -> u32 {
        let child = self.child.as_mut().unwrap();
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        child.id()
    }

    /// Connects as soon as it listens.
    pub(crate) fn connect(&mut self) -> UnixStream {
        let start = Instant::now();
        loop {
            match UnixStream::connect(self.path()) {
                Ok(stream) => return stream,
                Err(e) => assert!(start.elapsed() < SOON, "{e}: {:?}", self.child),
            }
            self.pid();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for a line with this on its standard error, and returns that. What it says before is
    /// lost.
    fn line_with(&mut self, text: &str) -> String {
        let said = self.child.as_mut().unwrap().stderr.take().unwrap();
        let mut said = std::io::BufReader::new(said);
        let mut line = String::new();
        loop {
            line.clear();
            let more = !said.buffer().is_empty() || by_hand::is_raised(said.get_ref());
            assert!(more, "it says nothing any more");
            let read = std::io::BufRead::read_line(&mut said, &mut line).unwrap();
            assert!(read > 0, "it ended without a line with {text}");
            if line.contains(text) {
                let child = self.child.as_mut().unwrap();
                child.stderr = Some(said.into_inner());
                return line;
            }
        }
    }

    /// Sends it a signal; returns what it said.
    pub(crate) fn end(mut self, signal: Signal) -> (Output, TempDir) {
        let child = self.child.as_mut().unwrap();
        let start = Instant::now();
        kill_process(Pid::from_child(child), signal).unwrap();
        while child.try_wait().unwrap().is_none() {
            // Where this fails it is killed.
            assert!(start.elapsed() < SOON, "a signal does not end it");
            std::thread::sleep(Duration::from_millis(1));
        }
        println!("ended after {:?}", start.elapsed());
        let child = self.child.take().unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(!self.path().exists(), "the socket is still there");
        let directory = std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap());
        (output, directory)
    }

    /// The same, of one that ends well and prints JSON.
    pub(crate) fn statistics(self, signal: Signal) -> Value {
        let (output, _) = self.end(signal);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", output.status);
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn command(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ioatlas"));
    command.arg("vhost-net").arg("--socket-path").arg(socket);
    command.args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn case(kind: Kind, wakeup: Wakeup) -> Case {
    Case {
        terms: Terms {
            kind,
            events: Events::Index,
            mergeable: true,
            swap: wakeup == Wakeup::Poll,
            size: 64,
            lie: Lie::Scattered,
        },
        wakeup,
        answer: Answer::Page(ByteCount(PAGE)),
        unmap: Unmap::Always,
        pairs: 2,
    }
}

/// Two front ends, one after the other, exchange frames with the program over this cache.
fn exchanges(iotlb: &str, kind: Kind, wakeup: Wakeup) {
    let case = case(kind, wakeup);
    let (wakeup, mode) = match wakeup {
        Wakeup::Poll => ("poll", "macswap"),
        Wakeup::Notify => ("notify", "loopback"),
    };
    let patience = SOON.as_millis().to_string();
    let options = [
        ["--iotlb", iotlb],
        ["--mode", mode],
        ["--wakeup", wakeup],
        ["--queue-pairs", "2"],
        ["--miss-timeout", &patience],
    ];
    let mut options = options.concat();
    options.extend(["--require-iommu", "--json"]);
    let mut program = Program::start(&options);
    for _ in 0..2 {
        let mut front = Front::new(program.connect(), &case);
        front.exchange(&case, 40);
        front.stop(case.pairs);
        front.guest.assert_canaries();
    }
    let said = program.statistics(Signal::INT);
    for (field, value) in [("iotlb", iotlb), ("mode", mode), ("wakeup", wakeup)] {
        assert_eq!(said[field], value, "{said}");
    }
    assert_eq!(said["connections"], 2, "{said}");
    let pairs = said["pairs"].as_array().unwrap();
    assert_eq!((said["queue_pairs"].as_u64(), pairs.len()), (Some(2), 2));
    for pair in pairs {
        for field in ["transmitted", "received"] {
            assert_eq!(pair[field], 80, "{said}");
        }
        for field in ["too_long", "too_short", "tap_dropped", "stopped"] {
            assert_eq!(pair[field], 0, "{said}");
        }
    }
    let number = |field: &str| said[field].as_f64().unwrap_or(-1.0);
    for field in ["hits", "misses", "updates", "invalidations", "seconds"] {
        assert!(number(field) > 0.0, "{field}: {said}");
    }
    assert_eq!(number("misses"), sum(pairs, "misses"), "{said}");
    // A front end that has gone has left nothing.
    assert_eq!((number("runs"), number("refused_updates")), (0.0, 0.0));
    let questions = &said["questions"];
    assert_eq!(questions["in_flight"], 0, "{said}");
    assert!(questions["most_in_flight"].as_u64() >= Some(1), "{said}");
    assert!(questions["sent"].as_f64() >= Some(number("updates")));
    let latency = &said["acknowledgement_us"];
    assert!(latency["mean"].as_f64() > Some(0.0), "{said}");
    assert!(latency["max"].as_f64() >= latency["mean"].as_f64());
}

fn sum(pairs: &[Value], field: &str) -> f64 {
    pairs.iter().filter_map(|pair| pair[field].as_f64()).sum()
}

#[test]
fn frames_go_through_the_radix_table() {
    exchanges("radix", Kind::Split, Wakeup::Notify);
    exchanges("radix", Kind::Packed, Wakeup::Poll);
}

#[test]
fn frames_go_through_the_list() {
    exchanges("list", Kind::Packed, Wakeup::Notify);
}

#[test]
fn frames_go_through_the_interval_tree() {
    exchanges("interval", Kind::Split, Wakeup::Poll);
}

#[test]
fn a_small_cache_evicts_and_goes_on() {
    let case = case(Kind::Split, Wakeup::Notify);
    let patience = SOON.as_millis().to_string();
    let options = ["--queue-pairs=2", "--iotlb-runs=48", "--json"];
    let options = [&options[..], &["--miss-timeout", &patience]].concat();
    let mut program = Program::start(&options);
    let mut front = Front::new(program.connect(), &case);
    front.exchange(&case, 40);
    front.stop(case.pairs);
    drop(front);
    let said = program.statistics(Signal::TERM);
    assert!(said["evictions"].as_u64() > Some(0), "{said}");
    assert_eq!(said["pairs"][0]["received"], 40, "{said}");
}

#[test]
fn it_ends_in_mid_connection_and_prints_a_table() {
    let case = case(Kind::Split, Wakeup::Notify);
    let patience = SOON.as_millis().to_string();
    let mut program = Program::start(&["--queue-pairs=2", "--miss-timeout", &patience]);
    let mut front = Front::new(program.connect(), &case);
    front.exchange(&case, 10);
    let (output, _) = program.end(Signal::TERM);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for row in [
        "hits",
        "misses",
        "in flight",
        "evictions",
        "acknowledged after",
    ] {
        assert!(text.lines().any(|line| line.starts_with(row)), "{text}");
    }
}

#[test]
fn a_client_connects_again_and_again() {
    let case = case(Kind::Split, Wakeup::Notify);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    // No process listens at first.
    let patience = SOON.as_millis().to_string();
    let options = ["--client", "--queue-pairs=2", "--json"];
    let options = [&options[..], &["--miss-timeout", &patience]].concat();
    let program = Program::start_in(directory, &options);
    let listener = UnixListener::bind(&path).unwrap();
    for _ in 0..2 {
        let (stream, _) = listener.accept().unwrap();
        let mut front = Front::new(stream, &case);
        front.exchange(&case, 10);
        front.stop(case.pairs);
    }
    // It is not the program's to remove.
    assert!(path.exists());
    std::fs::remove_file(&path).unwrap();
    let said = program.statistics(Signal::INT);
    assert_eq!(said["pairs"][1]["received"], 20, "{said}");
}

/// What it says where it cannot begin, and its exit status.
fn refused(socket: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = command(socket, arguments).output().unwrap();
    assert!(output.stdout.is_empty(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), said)
}

#[test]
fn sockets_that_cannot_be_are_refused_with_what_to_do() {
    let mut program = Program::start(&[]);
    drop(program.connect());
    let at = program.path();
    let (status, said) = refused(&at, &[]);
    assert_eq!(status, Some(1));
    assert!(
        said.contains("in use: another program listens there"),
        "{said}"
    );
    let (_, said) = refused(&at, &["--replace"]);
    assert!(said.contains("in use"), "{said}");
    drop(program.connect());
    let (_, directory) = program.end(Signal::TERM);

    let missing = directory.path().join("no/such/socket");
    let (status, said) = refused(&missing, &[]);
    let wanted = format!(
        "error: {}: no such directory; make it first\n",
        missing.parent().unwrap().display()
    );
    assert_eq!((status, said), (Some(1), wanted));

    let file = directory.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    for arguments in [&[][..], &["--replace"]] {
        let (status, said) = refused(&file, arguments);
        assert_eq!(status, Some(1));
        assert!(said.contains("exists, and is not a socket"), "{said}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");

    let long = directory.path().join("s".repeat(120));
    let (status, said) = refused(&long, &[]);
    assert_eq!(status, Some(1));
    assert!(said.contains("cannot listen"), "{said}");
}

#[test]
fn a_stale_socket_is_replaced_on_demand_only() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("socket");
    drop(UnixListener::bind(&at).unwrap());
    let (status, said) = refused(&at, &[]);
    assert_eq!(status, Some(1));
    assert!(
        said.contains("stale") && said.contains("--replace"),
        "{said}"
    );
    assert!(at.exists());
    let mut program = Program::start_in(directory, &["--replace"]);
    drop(program.connect());
    program.end(Signal::INT);
}

#[test]
fn what_was_negotiated_is_told() {
    for (kind, rings) in [(Kind::Split, "split"), (Kind::Packed, "packed")] {
        let case = case(kind, Wakeup::Notify);
        let mut program = Program::start(&["--queue-pairs=2"]);
        let front = Front::new(program.connect(), &case);
        let said = program.line_with("connected");
        let wanted = format!("note: connected, IOMMU on, {rings} rings, at most 4 queues\n");
        assert_eq!(said, wanted);
        drop(front);
        program.end(Signal::TERM);
    }
}

#[test]
fn statistics_are_told_as_often_as_wanted() {
    let case = case(Kind::Split, Wakeup::Notify);
    let mut program = Program::start(&["--queue-pairs=2", "--stats-every", "1"]);
    let mut front = Front::new(program.connect(), &case);
    front.exchange(&case, 10);
    // A line comes with all of them; how soon is its own affair.
    let said = program.line_with(" 40 frames;");
    assert!(
        said.starts_with("note: ") && said.contains(" frames/s, "),
        "{said}"
    );
    front.stop(case.pairs);
    program.end(Signal::TERM);
}

#[test]
fn a_guest_for_it_is_in_the_help() {
    let output = Command::new(env!("CARGO_BIN_EXE_ioatlas"))
        .args(["vhost-net", "--help"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    for needed in [
        "-object memory-backend-memfd,id=ram,size=1G,share=on -numa node,memdev=ram",
        "-device intel-iommu,intremap=on,device-iotlb=on",
        "-netdev vhost-user,id=n0,chardev=c0",
        "iommu_platform=on,ats=on",
    ] {
        assert!(said.contains(needed), "{needed}: {said}");
    }
}

/// Mode and group of the socket are set before any process can connect.
#[test]
fn a_socket_is_for_whom_it_is_said_to_be() {
    use std::os::unix::fs::MetadataExt;
    // As root any will do; others may give files to their own groups only.
    let group = match rustix::process::getuid().is_root() {
        true => 12_345,
        false => rustix::process::getgid().as_raw(),
    };
    let number = group.to_string();
    for mode in ["600", "660", "622"] {
        let mut program = Program::start(&["--socket-mode", mode, "--socket-group", &number]);
        drop(program.connect());
        let found = std::fs::metadata(program.path()).unwrap();
        let permissions = format!("{:o}", found.mode() & 0o777);
        assert_eq!((&*permissions, found.gid()), (mode, group));
        program.end(Signal::TERM);
    }
}

/// The program, whose standard input is this socket.
fn started_with(socket: impl Into<OwnedFd>, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ioatlas"));
    command.args(["vhost-net", "--fd", "0"]).args(arguments);
    command.stdin(Stdio::from(socket.into()));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn a_socket_that_listens_may_be_given_by_its_number() {
    let case = case(Kind::Split, Wakeup::Notify);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("given");
    let listener = UnixListener::bind(&path).unwrap();
    let child = started_with(listener, &["--queue-pairs=2", "--json"]);
    for _ in 0..2 {
        let mut front = Front::new(UnixStream::connect(&path).unwrap(), &case);
        front.exchange(&case, 10);
        front.stop(case.pairs);
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(path.exists(), "it is not the program's to remove");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["connections"], 2, "{said}");
}

#[test]
fn a_connection_may_be_given_by_its_number_and_ends_the_program() {
    let case = case(Kind::Packed, Wakeup::Notify);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let child = started_with(theirs, &["--queue-pairs=2", "--json"]);
    let mut front = Front::new(ours, &case);
    front.exchange(&case, 10);
    front.stop(case.pairs);
    drop(front);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["pairs"][0]["received"], 10, "{said}");
    assert_eq!(said["connections"], 1, "{said}");
}

#[test]
fn what_is_no_socket_for_front_ends_is_refused() {
    let (datagrams, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let internet = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (pipe, _writer) = std::io::pipe().unwrap();
    let others: [OwnedFd; 3] = [datagrams.into(), internet.into(), pipe.into()];
    for other in others {
        let output = started_with(other, &[]).wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains("file descriptor 0 is not a stream socket"),
            "{said}"
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let (status, said) = refused(&directory.path().join("socket"), &["--fd", "3"]);
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("cannot be used with"), "{said}");
    let ran = Command::new(env!("CARGO_BIN_EXE_ioatlas"))
        .args(["vhost-net", "--fd", "4000"])
        .output()
        .unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(said.contains("file descriptor 4000 is not"), "{said}");
}

/// By QEMU's conventions for back-end programs, whatever else is said.
#[test]
fn capabilities_are_printed_and_nothing_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("no/such/socket");
    let at = at.to_str().unwrap();
    for arguments in [&[][..], &["--socket-path", at, "--json"], &["--fd", "77"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_ioatlas"))
            .args(["vhost-net", "--print-capabilities"])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(said, serde_json::json!({"type": "net"}));
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("socket");
    for (arguments, wanted) in [
        (
            &["--mode", "bridge"][..],
            "loopback, macswap, tap or tap=NAME",
        ),
        (&["--mode", "tap="], "is no interface name"),
        (&["--mode", "tap=a/b"], "is no interface name"),
        (&["--queue-pairs", "0"], "1..=32"),
        (&["--queue-pairs", "33"], "1..=32"),
        (&["--iotlb", "hash"], "radix, list, interval"),
        (&["--iotlb-runs", "0"], "--iotlb-runs"),
        (&["--iotlb-runs", "1"], "--iotlb-runs"),
        (&["--replace", "--client"], "cannot be used with"),
        (&["--socket-mode", "600", "--client"], "cannot be used with"),
        (&["--socket-mode", "rw"], "permission bits in octal"),
        (
            &["--socket-group", "no such group"],
            "no group no such group",
        ),
    ] {
        let (status, said) = refused(&at, arguments);
        assert_eq!(status, Some(2), "{arguments:?}: {said}");
        assert!(said.contains(wanted), "{arguments:?}: {said}");
        assert!(!at.exists());
    }
}

/// Needs no TAP driver: whether the machine has none, or it is not for us, there is something to
/// do.
#[test]
fn a_tap_interface_that_cannot_be_had_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("socket");
    // Every machine has this interface, and it is no TAP.
    let (status, said) = refused(&at, &["--mode", "tap=lo"]);
    assert_eq!(status, Some(1), "{said}");
    let hints = ["modprobe tun", "may open it", "ip tuntap add lo"];
    assert!(hints.iter().any(|hint| said.contains(hint)), "{said}");
}
