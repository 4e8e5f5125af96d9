// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What is refused, and how.

use crate::machine::*;
use ioatlas_dma::units::*;
use ioatlas_nvme::{
    edu::{Edu, EduError},
    nvme::{NvmeError, command::*, namespace::Namespace, queue::Depth},
    policy::Policy,
};
use libtest_mimic::Failed;

pub fn refusals() -> std::result::Result<(), Failed> {
    let machine = Machine::start()?;
    let mut controller = machine.controller()?;
    let disk = machine.namespace(&mut controller)?;
    let mut queue = controller.create_queue(Depth(1), Told::Polled)?;
    let client = Policy::Always.client(&machine.domain)?;
    let mut wrong = Vec::new();
    let mut want = |what: &str, seen: std::result::Result<(), NvmeError>, text: &str| {
        let seen = seen.err().map_or("success".into(), |e| e.to_string());
        if !seen.contains(text) {
            wrong.push(format!("{what}: `{seen}`, want `{text}`"));
        }
    };
    for (len, text) in [
        (100, "no whole number of blocks"),
        (4 << 20, "the controller takes"),
    ] {
        let buffer = client.buffer(ByteCount(len)).ok_or("no memory")?;
        let seen = disk.read(&mut queue, &client, Block(0), buffer).map(drop);
        want("a length", seen, text);
    }
    let buffer = client.buffer(ByteCount(512)).ok_or("no memory")?;
    let beyond = Block(disk.blocks);
    let seen = disk.read(&mut queue, &client, beyond, buffer).map(drop);
    want("a block", seen, "block out of range");
    let seen = Namespace::open(&mut controller, &client, NamespaceId(0)).map(drop);
    want("namespace 0", seen, "there is no namespace 0");
    let seen = Namespace::open(&mut controller, &client, NamespaceId(7)).map(drop);
    want("namespace 7", seen, "there is no namespace 7");
    let read = |data| Command::read(disk.id, Block(0), BlockCount(1), data);
    queue.submit([], read)?; // never rung
    let seen = queue.submit([], read).map(drop);
    want("a full queue", seen, "all 1 commands are under way");
    let edu = Edu::new(machine.edu())?;
    let seen = edu.begin_write(Iova(0), ByteCount(4096)).map(drop);
    if seen != Err(EduError::TooMuch(ByteCount(4096))) {
        wrong.push(format!("{seen:?}"));
    }
    match wrong.is_empty() {
        true => Ok(controller.shut_down()?),
        false => Err(wrong.join("\n").into()),
    }
}

pub fn gone() -> std::result::Result<(), Failed> {
    let machine = Machine::start()?;
    let controller = machine.controller()?;
    machine.qemu.kill();
    match controller.shut_down() {
        Err(NvmeError::Gone) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}
