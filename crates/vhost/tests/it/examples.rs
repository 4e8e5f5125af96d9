// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The examples do what they say.

#[path = "../../examples/entropy.rs"]
#[allow(dead_code)]
mod entropy;
#[path = "../../examples/queue.rs"]
mod queue;

use crate::common::*;
use ioatlas_dma::units::*;
use ioatlas_vhost::{
    cache::{Limits, RadixIotlb},
    runner::{End, Runner},
    server::*,
};
use std::{
    fs::File,
    io::Write,
    os::unix::net::{UnixListener, UnixStream},
};
use vm_memory::{Bytes, GuestAddress};

#[test]
fn queue_reads_what_its_driver_wrote() {
    queue::main().unwrap();
}

/// Over a socket in the file system, twice: front ends come and go.
#[test]
fn entropy_fills_buffers_by_iova() {
    log_to_stderr();
    let mut source = memory_file(ByteCount(0), Sealed::No).unwrap();
    let noise: Vec<u8> = (0..4000u32).map(|i| (i * i % 251) as u8).collect();
    source.write_all(&noise).unwrap();
    std::io::Seek::rewind(&mut source).unwrap();
    let limits = Limits::default().runs(64).readers(1).pins(16);
    let mut runner =
        Runner::new(entropy::Entropy(source), RadixIotlb::new(limits), patient()).unwrap();
    let stop = runner.stop_handle();
    let name = format!("ioatlas-entropy-{}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let listener = UnixListener::bind(&path).unwrap();
    let back = std::thread::spawn(move || runner.serve(&listener));
    let mut given = Vec::new();
    for _ in 0..2 {
        let file = memory_file(ByteCount(MEMORY), Sealed::Yes).unwrap();
        let regions = vec![(GUEST, ByteCount(MEMORY), file)];
        let mut config = front_config(WITH_IOMMU);
        config.queues = 1;
        let socket = UnixStream::connect(&path).unwrap();
        let mut front = FrontEnd::connect(socket, config, regions, PageMap::default()).unwrap();
        let mut driver = Driver::by_iova(&mut front, 0);
        let to = GUEST + 0x20_0000;
        map(&front, 0x9000_0000, to, 0x1000, Perm::Write);
        driver.descriptor(&front, 0, (0x9000_0100, 2000, Way::Write), None);
        driver.offer(&front, 0);
        let used = eventually("used", || driver.used(&front));
        assert_eq!(used, (0, 2000));
        let mut got = vec![0; 2000];
        let place = GuestAddress(to + 0x100);
        front.memory().read_slice(&mut got, place).unwrap();
        given.extend(got);
    }
    assert!(given == noise, "what was given is not what the source held");
    stop.stop();
    back.join().unwrap().unwrap();
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_client_connects_again_until_it_is_stopped() {
    let limits = Limits::default().runs(64).readers(1).pins(16);
    let source = File::open("/dev/null").unwrap();
    let config = patient().reconnect(std::time::Duration::from_millis(5));
    let mut runner =
        Runner::new(entropy::Entropy(source), RadixIotlb::new(limits), config).unwrap();
    let (stop, observer) = (runner.stop_handle(), runner.observer());
    let name = format!("ioatlas-client-{}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let listener = UnixListener::bind(&path).unwrap();
    let back = std::thread::spawn({
        let path = path.clone();
        move || runner.connect(&path)
    });
    for _ in 0..3 {
        drop(listener.accept().unwrap());
    }
    eventually("three connections", || {
        (observer.stats().control.connections >= 3).then_some(())
    });
    stop.stop();
    back.join().unwrap().unwrap();
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_stopped_runner_ends_its_connection() {
    let limits = Limits::default().runs(64).readers(1).pins(16);
    let source = File::open("/dev/null").unwrap();
    let mut runner =
        Runner::new(entropy::Entropy(source), RadixIotlb::new(limits), patient()).unwrap();
    let stop = runner.stop_handle();
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let back = std::thread::spawn(move || runner.serve_stream(theirs));
    stop.stop();
    assert!(matches!(back.join().unwrap(), End::Stopped));
}
