// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Bring-up, administration and shut-down of a controller (§3.5).
//!
//! The order matters for protection: the controller is *disabled before its memory goes*. What it was told of, it may write to, until it says that it is not ready any more.

use super::{command::*, error::NvmeError, queue::*, registers::*};
use crate::window::{Idle, RegisterWindow, TimedOut};
use ioatlas_dma::{
    dma_api::{Client, CpuBuffer, FromDevice},
    domain::{Domain, UnmapError},
    platform::host::Host,
    translator::Translator,
    units::*,
};
use std::{sync::Arc, time::Duration};

const ADMIN_DEPTH: Depth = Depth(31);
/// What a list of one page can name.
const MOST: u64 = 2 << 20;

/// A controller that runs. Dropping it disables it.
pub struct Controller<T: Translator<Host>> {
    window: Arc<dyn RegisterWindow>,
    domain: Arc<Domain<Host, T>>,
    capabilities: Capabilities,
    idle: Idle,
    /// Taken when it ends.
    admin: Option<QueuePair<T>>,
    about: About,
    queues: u16,
}

/// What a controller says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct About {
    /// Its model.
    pub model: String,
    /// Its serial number.
    pub serial: String,
    /// The most that one command can transfer.
    pub transfer_max: ByteCount,
    /// Namespaces are numbered up to this.
    pub namespaces: u32,
}

impl<T: Translator<Host>> Controller<T> {
    /// Resets the device behind `window` and brings it up; its rings are mapped in `client`'s domain, to which it must be attached.
    ///
    /// # Errors
    /// [`NvmeError`]; the controller is disabled then.
    pub fn start(
        window: Arc<dyn RegisterWindow>,
        client: &Client<Host, T>,
        idle: Idle,
    ) -> Result<Self, NvmeError> {
        if window.read32(CSTS) == GONE {
            return Err(NvmeError::Gone);
        }
        let capabilities = Capabilities(window.read64(CAP));
        if capabilities.page_lg2_min() > GRANULE_LG2 {
            return Err(NvmeError::Pages(capabilities.page_lg2_min()));
        }
        disable(&*window, capabilities)?;
        let domain = client.dma().domain().clone();
        let (id, depth) = (QueueId(0), ADMIN_DEPTH);
        let admin = QueuePair::new(domain.clone(), window.clone(), capabilities, id, depth)?;
        let entries = admin.entries() - 1;
        window.write32(AQA, entries << 16 | entries);
        window.write64(ASQ, admin.submission_at().0);
        window.write64(ACQ, admin.completion_at().0);
        window.write32(CC, CC_ENTRY_SIZES | CC_ENABLE);
        let mut controller = Controller {
            window,
            domain,
            capabilities,
            idle,
            admin: Some(admin),
            about: About {
                model: String::new(),
                serial: String::new(),
                transfer_max: ByteCount(0),
                namespaces: 0,
            },
            queues: 0,
        };
        await_ready(&*controller.window, capabilities, CSTS_READY)?;
        controller.about = controller.ask_about(client)?;
        controller.administer(Command::want_queues(8), "set number of queues")?;
        Ok(controller)
    }

    /// What it says of itself.
    pub fn about(&self) -> &About {
        &self.about
    }
    /// Its capabilities.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
    /// How it waits.
    pub fn idle(&self) -> Idle {
        self.idle
    }

    /// Carries out a command without data.
    ///
    /// # Errors
    /// [`NvmeError`].
    pub fn administer(
        &mut self,
        command: Command,
        name: &'static str,
    ) -> Result<Completion, NvmeError> {
        self.administer_with([], |_| command, name)
    }

    fn administer_with(
        &mut self,
        data: impl IntoIterator<Item = (Iova, ByteCount)>,
        command: impl FnOnce(super::prp::DataPointer) -> Command,
        name: &'static str,
    ) -> Result<Completion, NvmeError> {
        let admin = self.admin.as_mut().ok_or(NvmeError::Gone)?;
        admin.submit(data, command)?;
        admin.ring();
        let done = admin.wait(self.idle)?;
        match done.status {
            None => Ok(done),
            Some(status) => Err(NvmeError::Command {
                command: name,
                status,
            }),
        }
    }

    /// Leaves a number where whoever records the controller's commands finds it.
    ///
    /// # Errors
    /// [`NvmeError`].
    pub fn note(&mut self, note: u32) -> Result<(), NvmeError> {
        let note = Command::note(note);
        self.administer(note, "get number of queues").map(drop)
    }

    /// Describes `what`. The shortest use of a typed buffer: memory, the device's for as long as the command runs, and ours again.
    ///
    /// # Errors
    /// [`NvmeError`].
    pub fn identify(
        &mut self,
        client: &Client<Host, T>,
        what: Identify,
    ) -> Result<CpuBuffer<Host, FromDevice>, NvmeError> {
        let len = ByteCount(GRANULE);
        let buffer = client.buffer(len).ok_or(NvmeError::NoMemory(len))?;
        let lent = client.give(buffer)?;
        let data = [(lent.iova(), len)];
        self.administer_with(data, |data| Command::identify(what, data), "identify")?;
        Ok(client.take_back(lent)?)
    }

    fn ask_about(&mut self, client: &Client<Host, T>) -> Result<About, NvmeError> {
        let page = self.identify(client, Identify::Controller)?;
        let text = |at, len| -> Result<String, NvmeError> {
            let mut bytes = vec![0; len];
            page.read(ByteCount(at), &mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim().to_string())
        };
        let (mut transfer, mut namespaces) = ([0], [0; 4]);
        page.read(ByteCount(77), &mut transfer)?;
        page.read(ByteCount(516), &mut namespaces)?;
        // a power of two of its smallest pages, or no limit
        let limit = match transfer {
            [0] => MOST,
            [lg2 @ 1..=20] => 1 << (self.capabilities.page_lg2_min() + u32::from(lg2)),
            _ => MOST,
        };
        Ok(About {
            serial: text(4, 20)?,
            model: text(24, 40)?,
            transfer_max: ByteCount(limit.min(MOST)),
            namespaces: u32::from_le_bytes(namespaces),
        })
    }

    /// Makes a pair of I/O queues.
    ///
    /// # Errors
    /// [`NvmeError`]; where the controller knows half of the pair its memory stays mapped.
    pub fn create_queue(&mut self, depth: Depth, told: Told) -> Result<QueuePair<T>, NvmeError> {
        let id = QueueId(self.queues + 1);
        let (domain, window) = (self.domain.clone(), self.window.clone());
        let pair = QueuePair::new(domain, window, self.capabilities, id, depth)?;
        let (entries, at) = (pair.entries(), pair.completion_at());
        let completion = Command::create_completion_queue(id, entries, at, told);
        self.administer(completion, "create completion queue")?;
        let submission = Command::create_submission_queue(id, entries, pair.submission_at());
        self.administer(submission, "create submission queue")?;
        self.queues += 1;
        Ok(pair)
    }

    /// Ends a pair of I/O queues, the last that was made and not ended; nothing is under way in it.
    ///
    /// # Errors
    /// [`NvmeError`]; its memory stays mapped then.
    pub fn delete_queue(&mut self, pair: QueuePair<T>) -> Result<(), NvmeError> {
        let id = pair.id();
        let submission = Command::delete_submission_queue(id);
        self.administer(submission, "delete submission queue")?;
        let completion = Command::delete_completion_queue(id);
        self.administer(completion, "delete completion queue")?;
        if self.queues == id.0 {
            self.queues -= 1;
        }
        pair.free().map_err(unmapped)
    }

    /// Disables it and frees its rings.
    ///
    /// # Errors
    /// [`NvmeError`]; then they stay mapped.
    pub fn shut_down(mut self) -> Result<(), NvmeError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), NvmeError> {
        let Some(admin) = self.admin.take() else {
            return Ok(());
        };
        disable(&*self.window, self.capabilities)?;
        admin.free().map_err(unmapped)
    }
}

impl<T: Translator<Host>> Drop for Controller<T> {
    fn drop(&mut self) {
        // what it may still write to stays mapped
        let _ = self.end();
    }
}

fn unmapped(error: UnmapError) -> NvmeError {
    ioatlas_dma::dma_api::DmaUnmapError::<PhysRange>::Direct(error).into()
}

fn disable(window: &dyn RegisterWindow, capabilities: Capabilities) -> Result<(), NvmeError> {
    let configured = window.read32(CC);
    window.write32(CC, configured & !CC_ENABLE);
    await_ready(window, capabilities, 0)
}

fn await_ready(
    window: &dyn RegisterWindow,
    capabilities: Capabilities,
    ready: u32,
) -> Result<(), NvmeError> {
    // a loaded machine may take longer than the controller says
    let limit = capabilities.ready_limit().max(Duration::from_secs(60));
    let mut last = 0;
    let nap = Idle::Nap(Duration::from_millis(1));
    let done = nap.until(limit, || {
        last = window.read32(CSTS);
        match last {
            GONE => Some(Err(NvmeError::Gone)),
            _ if last & CSTS_READY == ready => Some(Ok(())),
            // it stays not ready until it is reset
            _ if ready != 0 && last & CSTS_FATAL != 0 => Some(Err(NvmeError::Fatal(last))),
            _ => None,
        }
    });
    done.unwrap_or_else(|TimedOut(waited)| {
        Err(NvmeError::NotReady {
            wanted: if ready == 0 { "idle" } else { "ready" },
            waited,
            status: last,
        })
    })
}
