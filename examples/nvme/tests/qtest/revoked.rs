// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a device reaches after an unmap: nothing, as canaries show, whatever it reports.

use crate::machine::*;
use ioatlas_dma::{platform::*, units::*};
use ioatlas_nvme::{edu::Edu, nvme::command::*, nvme::queue::Depth, pattern, policy::Policy};
use libtest_mimic::Failed;
use std::time::{Duration, Instant};

pub fn after_unmap() -> std::result::Result<(), Failed> {
    let machine = Machine::start()?;
    let mut controller = machine.controller()?;
    let disk = machine.namespace(&mut controller)?;
    let mut queue = controller.create_queue(Depth(1), Told::Polled)?;
    let client = Policy::MapUnmap.client(&machine.domain)?;
    let frame = machine.host.frame_alloc().ok_or("no memory")?;
    let page = PhysRange::page(frame.page());
    let mut read = |at: Iova| -> Result<bool> {
        queue.submit([(at, page.len)], |data| {
            Command::read(disk.id, Block(0), BlockCount(8), data)
        })?;
        queue.ring();
        Ok(queue.wait(IDLE)?.status.is_none())
    };
    pattern::plant(OWNER, &*machine.host, 1, page)?;
    let mapping = client.map_single(lend(page), Direction::FromDevice)?;
    let at = mapping.iova();
    let while_mapped = read(at)?;
    let landed = pattern::changed(OWNER, &*machine.host, 1, page)?;
    client.unmap(mapping)?;
    pattern::plant(OWNER, &*machine.host, 2, page)?;
    let after = read(at)?;
    let late = pattern::changed(OWNER, &*machine.host, 2, page)?;
    let faults = machine.unit.faults().0.len();
    controller.delete_queue(queue)?;
    controller.shut_down()?;
    // `after` is success: the reason why no verdict is made of the controller's status
    match (while_mapped, landed > 4000, after, late, faults) {
        (true, true, true, 0, 1) => Ok(()),
        seen => Err(format!("{seen:?}").into()),
    }
}

pub fn under_way() -> std::result::Result<(), Failed> {
    let machine = Machine::start()?;
    let client = Policy::MapUnmap.client(&machine.domain)?;
    let edu = Edu::new(machine.edu())?;
    let frame = machine.host.frame_alloc().ok_or("no memory")?;
    let page = PhysRange::page(frame.page());
    for unmapped in [false, true] {
        pattern::plant(OWNER, &*machine.host, 3, page)?;
        let mapping = client.map_single(lend(page), Direction::FromDevice)?;
        let transfer = edu.begin_write(mapping.iova(), ByteCount(2048))?;
        let mut mapping = Some(mapping);
        if unmapped {
            mapping.take().map(|m| client.unmap(m)).transpose()?;
        }
        // the machine's clock stands until here
        machine.qemu.monitor("cont")?;
        transfer.wait()?;
        machine.qemu.monitor("stop")?;
        let changed = pattern::changed(OWNER, &*machine.host, 3, page)?;
        mapping.take().map(|m| client.unmap(m)).transpose()?;
        if (changed == 0) != unmapped {
            return Err(format!("unmapped: {unmapped}; {changed} bytes changed").into());
        }
    }
    // the last transfer was blocked: that is recorded
    let begun = Instant::now();
    while machine.unit.faults().0.is_empty() {
        if begun.elapsed() > Duration::from_secs(60) {
            return Err("no fault".into());
        }
    }
    Ok(())
}
