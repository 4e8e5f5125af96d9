// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! An `edu` that is nothing but code, behind a remapping unit that is nothing but code.

use ioatlas_dma::{domain::DomainConfig, translator::VtdSecond48, units::*};
use ioatlas_host::Host;
use ioatlas_nvme::window::RegisterWindow;
use ioatlas_viommu::machine::{Geometry, Machine, SoftDomain, UnitConfig};
use std::{
    error::Error,
    sync::{Arc, Mutex, PoisonError},
};

const EDU: SourceId = SourceId(0x20);
/// Where its buffer begins in its own addresses.
const BUFFER: u64 = 0x4_0000;
const LIVENESS: u64 = 0x04;
const SOURCE: u64 = 0x80;
const COUNT: u64 = 0x90;
const COMMAND: u64 = 0x98;

/// Its registers, as a driver sees them.
pub struct SoftEdu {
    machine: Machine<Host>,
    state: Mutex<State>,
}

struct State {
    liveness: u32,
    /// Source, destination and count.
    words: [u64; 3],
    buffer: Vec<u8>,
}

/// What is below it: our driver, our tables, a software unit.
pub type Domain = SoftDomain<Host, VtdSecond48>;

/// A domain to which such a device is attached.
pub fn machine() -> Result<(Domain, Arc<SoftEdu>), Box<dyn Error>> {
    let memory = Arc::new(Host::new(Default::default()));
    let machine = Machine::new(memory, &UnitConfig::new(Geometry::VTD_48))?;
    let domain = machine.domain::<VtdSecond48>(DomainConfig::default())?;
    domain.attach(EDU)?;
    let state = State {
        liveness: 0,
        words: [0; 3],
        buffer: vec![0; 4096],
    };
    let edu = SoftEdu {
        machine,
        state: Mutex::new(state),
    };
    Ok((domain, Arc::new(edu)))
}

impl SoftEdu {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves what it was told to, as far as the unit permits.
    fn transfer(&self, kind: AccessKind) {
        let state = &mut *self.state();
        let [from, to, count] = state.words;
        let (memory, own) = match kind {
            AccessKind::Write => (to, from),
            _ => (from, to),
        };
        let inside = state.buffer.get_mut(own.wrapping_sub(BUFFER) as usize..);
        let Some(part) = inside.and_then(|rest| rest.get_mut(..count as usize)) else {
            return;
        };
        // what is refused is not moved, as on a bus
        let _ = match kind {
            AccessKind::Write => self.machine.dma_write(EDU, Iova(memory), part),
            AccessKind::Read => self.machine.dma_read(EDU, Iova(memory), part),
        };
    }
}

impl RegisterWindow for SoftEdu {
    fn read32(&self, offset: u64) -> u32 {
        match offset {
            0 => 0x0100_00ed,
            LIVENESS => self.state().liveness,
            // it is never under way
            _ => 0,
        }
    }
    fn write32(&self, offset: u64, value: u32) {
        if offset == LIVENESS {
            self.state().liveness = !value;
        }
    }
    fn write64(&self, offset: u64, value: u64) {
        match offset {
            SOURCE..=COUNT => self.state().words[((offset - SOURCE) / 8) as usize] = value,
            COMMAND if value & 1 != 0 => self.transfer(match value & 2 {
                0 => AccessKind::Read,
                _ => AccessKind::Write,
            }),
            _ => {}
        }
    }
}
