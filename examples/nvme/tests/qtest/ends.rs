// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How things end: queues that the controller refuses, and the controller itself.

use crate::{
    machine::*,
    refusing::{Next, Refusing},
};
use ioatlas_dma::units::*;
use ioatlas_nvme::{
    nvme::{NvmeError, command::*, controller::Controller, queue::Depth, registers::*},
    policy::Policy,
    window::{RegisterWindow, Vector},
};
use libtest_mimic::Failed;
use std::sync::{Arc, Mutex};

fn mapped(machine: &Machine) -> Result<PageCount> {
    Ok(machine.domain.audit()?.census.pages)
}

/// Half a pair is no pair: whichever half is refused, nothing of it stays mapped, and the next can
/// be had.
pub fn refused_queues() -> std::result::Result<(), Failed> {
    let machine = Machine::start()?;
    let window = Arc::new(Refusing::new(&machine));
    let client = Policy::MapUnmap.client(&machine.domain)?;
    let mut controller = Controller::start(window.clone(), &client, IDLE)?;
    let before = mapped(&machine)?;
    let none = Told::By(Vector(77));
    let refused = [controller.create_queue(Depth(8), none).map(drop), {
        window.refuse(Next::CreateSubmissionQueue);
        controller.create_queue(Depth(8), Told::Polled).map(drop)
    }];
    let wants = ["create completion queue", "create submission queue"];
    for (refused, want) in refused.into_iter().zip(wants) {
        match refused {
            Err(NvmeError::Command { command, .. }) if command == want => {}
            other => return Err(format!("{other:?}, want {want}").into()),
        }
    }
    if mapped(&machine)? != before {
        return Err(format!("{:?} pages, {before:?} before", mapped(&machine)?).into());
    }
    let queue = controller.create_queue(Depth(8), Told::Polled)?;
    controller.delete_queue(queue)?;
    // what the controller knows of is freed when it ends
    let queue = controller.create_queue(Depth(8), Told::Polled)?;
    window.refuse(Next::DeleteSubmissionQueue);
    match controller.delete_queue(queue) {
        Err(NvmeError::Command { .. }) => {}
        other => return Err(format!("{other:?}, want a refusal").into()),
    }
    controller.shut_down()?;
    drop(client);
    match mapped(&machine)? {
        PageCount(0) => Ok(()),
        left => Err(format!("{left:?} pages stay mapped").into()),
    }
}

/// Writes down what is written to CC, and what CSTS says then.
struct Recorded {
    inner: Arc<Window>,
    seen: Mutex<Vec<(u32, u32)>>,
}

impl RegisterWindow for Recorded {
    fn read32(&self, offset: u64) -> u32 {
        RegisterWindow::read32(&*self.inner, offset)
    }
    fn write32(&self, offset: u64, value: u32) {
        RegisterWindow::write32(&*self.inner, offset, value);
        if offset == CC {
            let mut seen = self.seen.lock().unwrap_or_else(|e| e.into_inner());
            seen.push((value, RegisterWindow::read32(&*self.inner, CSTS)));
        }
    }
}

/// Bring-up resets and does not shut down; the end shuts down first, then disables; and the
/// controller starts again.
pub fn in_order() -> std::result::Result<(), Failed> {
    let machine = Machine::start()?;
    let client = Policy::MapUnmap.client(&machine.domain)?;
    for _ in 0..2 {
        let window = Arc::new(Recorded {
            inner: machine.nvme(),
            seen: Mutex::default(),
        });
        Controller::start(window.clone(), &client, IDLE)?.shut_down()?;
        let seen = window.seen.lock().unwrap_or_else(|e| e.into_inner());
        let cc: Vec<u32> = seen
            .iter()
            .map(|(cc, _)| cc & (CC_ENABLE | CC_SHUTDOWN))
            .collect();
        let after_shutdown = seen.get(2).map(|(_, csts)| csts & CSTS_SHUTDOWN);
        let want = [0, CC_ENABLE, CC_ENABLE | CC_SHUTDOWN_NORMAL, 0];
        if cc != want || after_shutdown != Some(CSTS_SHUTDOWN_COMPLETE) {
            return Err(format!("{seen:x?}").into());
        }
    }
    Ok(())
}
