// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A controller with one disk, as far as the driver uses one. It carries out one command of a queue
//! each time that one of the queue's two doorbells is rung, so that a driver can be made to see the
//! end of a command while another is under way.

use ioatlas_dma::{
    domain::DomainConfig,
    translator::{Paged, VtdSecond48},
    units::*,
};
use ioatlas_host::Host;
use ioatlas_nvme::{nvme::registers::*, window::RegisterWindow};
use ioatlas_viommu::machine::{Driver, Geometry, Machine, SoftDomain, UnitConfig};
use std::{
    error::Error,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

const NVME: SourceId = SourceId(0x28);
/// Blocks of the disk, of 512 bytes each.
pub const BLOCKS: u64 = 2048;
const BLOCK: u64 = 512;
/// Entries of a queue at most, less one (MQES); ready within half a second (TO).
const CAPABILITIES: u64 = 63 | 1 << 24;
const COMMAND_BYTES: u64 = 64;
const COMPLETION_BYTES: u64 = 16;
const DOORBELLS: u64 = 0x1000;
const INVALID_NAMESPACE: u64 = 0x0b;
const OUT_OF_RANGE: u64 = 0x80;

pub type Tables = Paged<Host, VtdSecond48, Arc<Driver<Host>>>;
pub type Domain = SoftDomain<Host, VtdSecond48>;

/// What every byte of a block is.
pub fn content(block: u64) -> u8 {
    (block % 255) as u8 + 1
}

/// A domain to which such a controller is attached.
pub fn machine() -> Result<(Domain, Arc<SoftNvme>), Box<dyn Error>> {
    let memory = Arc::new(Host::new(Default::default()));
    let machine = Machine::new(memory, &UnitConfig::new(Geometry::VTD_48))?;
    let domain = machine.domain::<VtdSecond48>(DomainConfig::default())?;
    domain.attach(NVME)?;
    let state = Mutex::default();
    Ok((domain, Arc::new(SoftNvme { machine, state })))
}

pub struct SoftNvme {
    machine: Machine<Host>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    configured: u32,
    /// The one for administration, and one more.
    queues: [Queue; 2],
}

#[derive(Clone, Copy, Default)]
struct Queue {
    /// Where the rings are, as IOVAs.
    submission: u64,
    completion: u64,
    entries: u64,
    tail: u64,
    head: u64,
    /// Completions since it was made.
    completed: u64,
}

/// What a command moves, and what became of it.
struct Done {
    /// What is written to its data.
    data: Vec<u8>,
    status: u64,
}

impl Done {
    const WELL: Done = Done {
        data: Vec::new(),
        status: 0,
    };
    fn status(status: u64) -> Self {
        Done {
            status,
            ..Done::WELL
        }
    }
}

impl SoftNvme {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the unit blocks is zero, as on a bus.
    fn word(&self, at: Iova) -> u64 {
        let mut bytes = [0; 8];
        let _ = self.machine.dma_read(NVME, at, &mut bytes);
        u64::from_le_bytes(bytes)
    }
    /// What the unit blocks is not written, as on a bus.
    fn write(&self, at: Iova, bytes: &[u8]) {
        let _ = self.machine.dma_write(NVME, at, bytes);
    }

    /// Carries out the next command of a queue, if there is one.
    fn carry_out(&self, state: &mut State, number: usize) {
        let queue = state.queues[number];
        if queue.entries == 0 || queue.head == queue.tail {
            return;
        }
        let at = queue.submission + queue.head * COMMAND_BYTES;
        let words: [u64; 8] = std::array::from_fn(|nth| self.word(Iova(at + nth as u64 * 8)));
        let done = match number {
            0 => administer(state, &words),
            _ => transfer(&words),
        };
        // the driver here moves a page at most, which is one entry where it begins a page
        assert!(words[3].is_multiple_of(GRANULE) && done.data.len() as u64 <= GRANULE);
        self.write(Iova(words[3]), &done.data);
        let queue = &mut state.queues[number];
        let phase = 1 - queue.completed / queue.entries % 2;
        let at = queue.completion + queue.completed % queue.entries * COMPLETION_BYTES;
        let id = words[0] >> 16 & 0xffff;
        let last = id << 32 | phase << 48 | done.status << 49;
        self.write(Iova(at), &[0; 8]);
        self.write(Iova(at + 8), &last.to_le_bytes());
        queue.completed += 1;
        queue.head = (queue.head + 1) % queue.entries;
    }
}

fn administer(state: &mut State, words: &[u64; 8]) -> Done {
    let (entries, own) = ((words[5] >> 16 & 0xffff) + 1, &mut state.queues[1]);
    match words[0] & 0xff {
        0x01 => own.submission = words[3],
        0x05 => {
            *own = Queue {
                entries,
                completion: words[3],
                ..Queue::default()
            }
        }
        0x06 => return identify(words[0] >> 32, words[5]),
        _ => {}
    }
    Done::WELL
}

fn identify(namespace: u64, structure: u64) -> Done {
    let mut data = vec![0; GRANULE as usize];
    match (structure, namespace) {
        (1, _) => data[516] = 1,
        (0, 1) => {
            data[..8].copy_from_slice(&BLOCKS.to_le_bytes());
            data[130] = BLOCK.ilog2() as u8;
        }
        _ => return Done::status(INVALID_NAMESPACE),
    }
    Done { data, status: 0 }
}

fn transfer(words: &[u64; 8]) -> Done {
    let (first, blocks) = (words[5], (words[6] & 0xffff) + 1);
    if first + blocks > BLOCKS {
        return Done::status(OUT_OF_RANGE);
    }
    let block = |block| [content(block); BLOCK as usize];
    Done {
        data: (first..first + blocks).flat_map(block).collect(),
        status: 0,
    }
}

impl RegisterWindow for SoftNvme {
    fn read32(&self, offset: u64) -> u32 {
        let configured = self.state().configured;
        match offset {
            CC => configured,
            CSTS => {
                let ready = configured & CC_ENABLE;
                match configured & CC_SHUTDOWN {
                    0 => ready,
                    _ => ready | CSTS_SHUTDOWN_COMPLETE,
                }
            }
            _ => 0,
        }
    }
    fn read64(&self, offset: u64) -> u64 {
        match offset {
            CAP => CAPABILITIES,
            _ => 0,
        }
    }
    fn write32(&self, offset: u64, value: u32) {
        let state = &mut *self.state();
        match offset {
            CC => state.configured = value,
            AQA => state.queues[0].entries = u64::from(value & 0xfff) + 1,
            DOORBELLS.. => {
                let number = (offset - DOORBELLS) as usize / 8;
                if offset.is_multiple_of(8) {
                    state.queues[number].tail = value.into();
                }
                self.carry_out(state, number);
            }
            _ => {}
        }
    }
    fn write64(&self, offset: u64, value: u64) {
        let admin = &mut self.state().queues[0];
        match offset {
            ASQ => admin.submission = value,
            ACQ => admin.completion = value,
            _ => {}
        }
    }
}
