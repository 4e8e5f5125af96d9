// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A window that spoils a command just before the controller is told of it, so that it is refused:
//! what a driver sends by itself is not.

use crate::machine::{Machine, OWNER, Tables, Window};
use ioatlas_dma::{domain::Domain, platform::Ordering, units::*};
use ioatlas_host::Host;
use ioatlas_nvme::{
    nvme::{command::COMMAND_WORDS, registers::ASQ},
    window::RegisterWindow,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where the controller is told of administration commands.
const ADMIN_DOORBELL: u64 = 0x1000;
/// The word of a command that begins with the number of a queue.
const QUEUE_WORD: usize = 5;
/// A number that no queue has.
const NO_QUEUE: u64 = 0x7fff;

/// What is refused next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Next {
    DeleteSubmissionQueue = 0x00,
    CreateSubmissionQueue = 0x01,
}

pub struct Refusing {
    inner: Arc<Window>,
    domain: Arc<Domain<Host, Tables>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: Option<Next>,
    /// Where the commands are, as the controller was told.
    ring: u64,
    tail: u32,
}

impl Refusing {
    pub fn new(machine: &Machine) -> Self {
        Refusing {
            inner: machine.nvme(),
            domain: machine.domain.clone(),
            state: Mutex::default(),
        }
    }
    pub fn refuse(&self, next: Next) {
        self.state().next = Some(next);
    }
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the command at `entry` a queue that there is not, if it is the one to be refused.
    fn spoil(&self, state: &mut State, entry: u32) {
        let host = self.domain.platform();
        let at = Iova(state.ring + u64::from(entry) * COMMAND_WORDS as u64 * 8);
        let found = self.domain.translator().table().walk(host, at.page());
        let Some((page, _)) = found else { return };
        let first = (page.addr().0 + at.offset()) as usize / 8;
        let words = &host.words(OWNER)[first..first + COMMAND_WORDS];
        let opcode = words[0].load(Ordering::Relaxed) & 0xff;
        if state.next.is_some_and(|next| next as u64 == opcode) {
            state.next = None;
            let word = words[QUEUE_WORD].load(Ordering::Relaxed);
            words[QUEUE_WORD].store(word | NO_QUEUE, Ordering::Relaxed);
        }
    }
}

impl RegisterWindow for Refusing {
    fn read32(&self, offset: u64) -> u32 {
        RegisterWindow::read32(&*self.inner, offset)
    }
    fn write32(&self, offset: u64, value: u32) {
        if offset == ADMIN_DOORBELL {
            let state = &mut *self.state();
            let entry = std::mem::replace(&mut state.tail, value);
            self.spoil(state, entry);
        }
        RegisterWindow::write32(&*self.inner, offset, value);
    }
    fn write64(&self, offset: u64, value: u64) {
        if offset == ASQ {
            let state = &mut *self.state();
            (state.ring, state.tail) = (value, 0);
        }
        RegisterWindow::write64(&*self.inner, offset, value);
    }
}
