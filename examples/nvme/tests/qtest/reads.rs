// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What reads bring.

use crate::machine::*;
use ioatlas_dma::{dma_api::*, units::*};
use ioatlas_nvme::{
    load::{self, Buffers, Load},
    nvme::{command::*, queue::Depth},
    pattern::{self, Expected},
    policy::Policy,
};
use libtest_mimic::Failed;

pub fn typed() -> std::result::Result<(), Failed> {
    let machine = Machine::start()?;
    let mut controller = machine.controller()?;
    if !controller.about().model.contains("QEMU") {
        return Err(format!("{:?}", controller.about()).into());
    }
    let disk = machine.namespace(&mut controller)?;
    if disk.len() != DISK {
        return Err(format!("{disk:?}").into());
    }
    let mut queue = controller.create_queue(Depth(4), Told::Polled)?;
    for policy in Policy::ALL {
        let client = policy.client(&machine.domain)?;
        for len in [512, 4096, 8192, 9 * 512, 128 << 10] {
            let first = Block(len / 512 * 3);
            let buffer = client.buffer(ByteCount(len)).ok_or("no memory")?;
            let buffer = disk.read(&mut queue, &client, first, buffer)?;
            let mut bytes = vec![0; len as usize];
            buffer.read(ByteCount(0), &mut bytes)?;
            let wrong = pattern::wrong_bytes(&bytes, ByteCount(first.0 * 512));
            if wrong > 0 {
                return Err(format!("{policy}, {len} bytes: {wrong} are wrong").into());
            }
        }
    }
    controller.delete_queue(queue)?;
    Ok(controller.shut_down()?)
}

pub fn policies() -> std::result::Result<(), Failed> {
    let machine = Machine::start()?;
    let mut controller = machine.controller()?;
    let disk = machine.namespace(&mut controller)?;
    let mut queue = controller.create_queue(Depth(8), Told::Polled)?;
    let len = ByteCount((128 << 10) + GRANULE);
    let buffers = Buffers::new(machine.host.clone(), 8, len)?;
    for policy in Policy::ALL {
        let client = policy.client(&machine.domain)?;
        for (size, offset) in [
            (4096, 0),
            (4096, 512),
            (16 << 10, 1024),
            (128 << 10, 0),
            (128 << 10, 512),
        ] {
            let load = Load {
                policy,
                size: ByteCount(size),
                depth: Depth(8),
                reads: 24,
                offset: ByteCount(offset),
                check: Some(&Expected::Pattern(DISK)),
            };
            let seen = load::run(&load, &mut queue, &client, &disk, &buffers, IDLE)?;
            // mapped directly, what lies beside a buffer is reachable, but a device that behaves
            // leaves it
            let good = seen.reads == 24 && seen.wrong_bytes == 0 && seen.changed_bytes == 0;
            if !good || seen.failed > 0 {
                return Err(format!("{load:?}: {seen:?}").into());
            }
        }
    }
    controller.delete_queue(queue)?;
    Ok(controller.shut_down()?)
}

pub fn written() -> std::result::Result<(), Failed> {
    let machine = Machine::start()?;
    let mut controller = machine.controller()?;
    let disk = machine.namespace(&mut controller)?;
    let mut queue = controller.create_queue(Depth(1), Told::Polled)?;
    for policy in Policy::ALL {
        let client = policy.client(&machine.domain)?;
        let buffer: CpuBuffer<_, ToDevice> =
            client.buffer(ByteCount(5 << 12)).ok_or("no memory")?;
        let mark = format!("written under {policy}");
        buffer.write(ByteCount(4090), mark.as_bytes())?;
        let buffer = disk.write(&mut queue, &client, Block(800), buffer)?;
        let buffer = disk.read(&mut queue, &client, Block(800), buffer.turned())?;
        let mut bytes = vec![0; mark.len()];
        buffer.read(ByteCount(4090), &mut bytes)?;
        if bytes != mark.as_bytes() {
            return Err(format!("{policy}: {:?}", String::from_utf8_lossy(&bytes)).into());
        }
    }
    controller.delete_queue(queue)?;
    Ok(controller.shut_down()?)
}

pub fn nothing_stays() -> std::result::Result<(), Failed> {
    let machine = Machine::start()?;
    let mut controller = machine.controller()?;
    let disk = machine.namespace(&mut controller)?;
    let mut queue = controller.create_queue(Depth(2), Told::Polled)?;
    for policy in Policy::ALL {
        let client = policy.client(&machine.domain)?;
        let buffer = client.buffer(ByteCount(9 * 512)).ok_or("no memory")?;
        disk.read(&mut queue, &client, Block(1), buffer)?;
    }
    controller.delete_queue(queue)?;
    controller.shut_down()?;
    let stats = machine.domain.audit()?;
    match stats.census.pages {
        PageCount(0) => Ok(()),
        _ => Err(format!("{stats:?}").into()),
    }
}
