// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The driver on a controller that is nothing but code, behind a remapping unit that is nothing but
//! code: what becomes of memory when a command fails, or is answered late.

#[path = "controller/soft.rs"]
mod soft;

use ioatlas_dma::{dma_api::*, platform::Platform, units::*};
use ioatlas_nvme::{
    load::{self, Buffers, Load},
    nvme::{
        NvmeError,
        command::*,
        controller::Controller,
        namespace::Namespace,
        queue::{Depth, QueuePair},
    },
    pattern::Expected,
    policy::Policy,
    window::{Idle, RegisterWindow},
};
use soft::{BLOCKS, Domain, SoftNvme, content};
use std::sync::Arc;

struct Rig {
    domain: Arc<Domain>,
    client: Client<ioatlas_host::Host, soft::Tables>,
    controller: Controller<soft::Tables>,
    disk: Namespace,
    queue: QueuePair,
}

impl Rig {
    fn new(policy: Policy) -> Self {
        let (domain, device) = soft::machine().unwrap();
        let domain = Arc::new(domain);
        let client = policy.client(&domain).unwrap();
        let window = device as Arc<SoftNvme> as Arc<dyn RegisterWindow>;
        let mut controller = Controller::start(window, &client, Idle::Spin).unwrap();
        let disk = Namespace::open(&mut controller, &client, NamespaceId(1)).unwrap();
        let queue = controller.create_queue(Depth(4), Told::Polled).unwrap();
        Rig {
            domain,
            client,
            controller,
            disk,
            queue,
        }
    }
    fn page(&self) -> CpuBuffer<ioatlas_host::Host, FromDevice> {
        self.client.buffer(ByteCount(GRANULE)).unwrap()
    }
    /// Frames in use, and pages that are mapped.
    fn held(&self) -> (usize, PageCount) {
        let mapped = self.domain.audit().unwrap().census.pages;
        (self.domain.platform().frames_in_use(), mapped)
    }
}

/// The controller has completed the command: it does not touch its memory any more.
#[test]
fn a_command_that_fails_gives_its_memory_back() {
    // what `Adaptive` does depends on the time
    let policies = Policy::ALL.into_iter();
    for policy in policies.filter(|policy| *policy != Policy::Adaptive) {
        let mut rig = Rig::new(policy);
        let mut after = Vec::new();
        for _ in 0..32 {
            let none = Identify::Namespace(NamespaceId(99));
            match rig.controller.identify(&rig.client, none).map(drop) {
                Err(NvmeError::Command { .. }) => {}
                other => panic!("{policy}: {other:?}"),
            }
            let (buffer, beyond) = (rig.page(), Block(BLOCKS));
            let read = rig
                .disk
                .read(&mut rig.queue, &rig.client, beyond, buffer)
                .map(drop);
            match read {
                Err(NvmeError::Command { .. }) => {}
                other => panic!("{policy}: {other:?}"),
            }
            after.push(rig.held());
        }
        // the first may have warmed something
        assert_eq!(after[31], after[1], "{policy}: {after:?}");
    }
}

/// Nor has it heard of one that does not fit into the ring.
#[test]
fn a_command_that_was_not_given_gives_its_memory_back() {
    let mut rig = Rig::new(Policy::MapUnmap);
    let read = |data| Command::read(NamespaceId(1), Block(0), BlockCount(1), data);
    while rig.queue.submit([], read).is_ok() {}
    let before = rig.held();
    for _ in 0..4 {
        let buffer = rig.page();
        let read = rig
            .disk
            .read(&mut rig.queue, &rig.client, Block(0), buffer)
            .map(drop);
        assert!(matches!(read, Err(NvmeError::Full { .. })), "{read:?}");
    }
    assert_eq!(rig.held(), before);
}

/// A command was given up as unanswered. What the controller says of that one is not said of the
/// next.
#[test]
fn a_read_is_not_over_by_the_end_of_another() {
    let mut rig = Rig::new(Policy::MapUnmap);
    let late = rig.client.give(rig.page()).unwrap();
    let data = [(late.iova(), ByteCount(GRANULE))];
    let blocks = rig.disk.blocks_of(ByteCount(GRANULE)).unwrap();
    let command = |data| Command::read(NamespaceId(1), Block(0), blocks, data);
    rig.queue.submit(data, command).unwrap();
    let (buffer, first) = (rig.page(), Block(16));
    let read = rig
        .disk
        .read(&mut rig.queue, &rig.client, first, buffer)
        .unwrap();
    let mut byte = [0];
    read.read(ByteCount(0), &mut byte).unwrap();
    assert_eq!(rig.queue.under_way(), 0, "taken back while it is under way");
    assert_eq!(byte, [content(first.0)]);
    drop(rig.client.take_back(late).unwrap());
}

/// Reads may be under way, and what they were mapped for stays mapped: their frames must not become
/// anything else.
#[test]
fn buffers_of_a_load_that_failed_are_not_used_again() {
    for (depth, lost) in [(1, false), (4, true)] {
        let mut rig = Rig::new(Policy::MapUnmap);
        let host = rig.domain.platform().clone();
        let buffers = Buffers::new(host.clone(), 8, ByteCount(GRANULE)).unwrap();
        let pages: Vec<PhysPage> = (0..8).map(|nth| buffers.whole(nth).addr.page()).collect();
        // of four entries one is taken, so that the fourth read at once is one too many
        if lost {
            let read = |data| Command::read(NamespaceId(1), Block(0), BlockCount(1), data);
            rig.queue.submit([], read).unwrap();
        }
        let load = Load {
            policy: Policy::MapUnmap,
            size: ByteCount(GRANULE),
            depth: Depth(depth),
            reads: 8,
            offset: ByteCount(0),
            check: None,
        };
        let (queue, client) = (&mut rig.queue, &rig.client);
        let seen = load::run(&load, queue, client, &rig.disk, &buffers, Idle::Spin);
        assert_eq!(seen.is_err(), lost, "{seen:?}");
        drop(buffers);
        let free: Vec<_> = std::iter::from_fn(|| host.frame_alloc()).collect();
        let came_back = free.iter().filter(|frame| pages.contains(&frame.page()));
        assert_eq!(came_back.count(), if lost { 0 } else { 8 });
    }
}

/// Each completion takes one where its mapping ends by itself.
#[test]
fn a_burst_of_completions_takes_one_invalidation() {
    const READS: u64 = 32;
    let disk = (0..BLOCKS).flat_map(|block| [content(block); 512]);
    let expected = Expected::Copy(disk.collect());
    let invalidations = |policy| {
        let mut rig = Rig::new(policy);
        let host = rig.domain.platform().clone();
        let buffers = Buffers::new(host, 4, ByteCount(GRANULE)).unwrap();
        let load = Load {
            policy,
            size: ByteCount(GRANULE),
            depth: Depth(4),
            reads: READS as u32,
            offset: ByteCount(0),
            check: Some(&expected),
        };
        let before = (rig.held(), rig.domain.stats().invalidations);
        let (queue, client) = (&mut rig.queue, &rig.client);
        let seen = load::run(&load, queue, client, &rig.disk, &buffers, Idle::Spin).unwrap();
        let bad = seen.wrong_bytes + seen.changed_bytes + seen.failed;
        assert_eq!((seen.reads, bad), (READS, 0), "{policy}");
        assert_eq!(rig.held().1, before.0.1, "P1: {policy}: pages stay mapped");
        rig.domain.stats().invalidations - before.1
    };
    assert_eq!(invalidations(Policy::MapUnmap), READS);
    // the controller completes two or three commands between two looks
    let bursts = invalidations(Policy::MapUnmapBursts);
    assert!(bursts <= READS / 2, "{bursts}");
}
