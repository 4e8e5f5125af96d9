// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Bring-up, administration and shut-down of a controller (§3.5).
//!
//! The order matters for protection: the controller is *disabled before its memory goes*. What it
//! was told of, it may write to, until it says that it is not ready any more. Before that it is
//! asked to shut down, so that a disk can keep what is not on it yet (§3.6.1).

use super::{command::*, error::NvmeError, lent::settle, queue::*, registers::*};
use crate::window::{Idle, RegisterWindow, TimedOut};
use ioatlas_dma::{
    dma_api::{Client, CpuBuffer, FromDevice},
    domain::UnmapError,
    translator::Translator,
    units::*,
};
use ioatlas_host::Host;
use std::{sync::Arc, time::Duration};

const ADMIN_DEPTH: Depth = Depth(31);
/// What a list of one page can name.
const MOST: u64 = 2 << 20;

/// A controller that runs. Dropping it disables it.
pub struct Controller<T: Translator<Host>> {
    window: Arc<dyn RegisterWindow>,
    /// Maps its rings.
    client: Client<Host, T>,
    capabilities: Capabilities,
    idle: Idle,
    /// Taken when it ends.
    admin: Option<QueuePair>,
    /// Pairs of which it may know though we do not use them: freed when it ends.
    left: Vec<QueuePair>,
    about: About,
    queues: u16,
}

/// What a controller says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // its fields say it
pub struct About {
    pub model: String,
    pub serial: String,
    /// The most that one command can transfer.
    pub transfer_max: ByteCount,
    /// Namespaces are numbered up to this.
    pub namespaces: u32,
    /// How long it may take to shut down (RTD3E); zero where it does not say.
    pub shutdown_limit: Duration,
}

impl<T: Translator<Host>> Controller<T> {
    /// Resets the device behind `window` and brings it up; its rings are mapped in `client`'s
    /// domain, to which it must be attached.
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
        let (id, depth) = (QueueId(0), ADMIN_DEPTH);
        let admin = QueuePair::new(client, window.clone(), capabilities, id, depth)?;
        let entries = admin.entries() - 1;
        window.write32(AQA, entries << 16 | entries);
        window.write64(ASQ, admin.submission_at().0);
        window.write64(ACQ, admin.completion_at().0);
        window.write32(CC, CC_ENTRY_SIZES | CC_ENABLE);
        let mut controller = Controller {
            window,
            client: client.clone(),
            capabilities,
            idle,
            admin: Some(admin),
            left: Vec::new(),
            about: About {
                model: String::new(),
                serial: String::new(),
                transfer_max: ByteCount(0),
                namespaces: 0,
                shutdown_limit: Duration::ZERO,
            },
            queues: 0,
        };
        Awaited::Ready.by(&*controller.window, capabilities.ready_limit())?;
        controller.about = controller.ask_about(client)?;
        controller.administer(Command::want_queues(8), "set number of queues")?;
        Ok(controller)
    }

    /// What it says of itself.
    pub fn about(&self) -> &About {
        &self.about
    }
    /// Its capabilities (CAP), as read when it was started.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
    /// How it waits for completions and states.
    pub fn idle(&self) -> Idle {
        self.idle
    }

    /// Carries out a command without data.
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
        let id = admin.submit(data, command)?;
        admin.ring();
        let done = admin.wait_for(id, self.idle)?;
        match done.status {
            None => Ok(done),
            Some(status) => Err(NvmeError::Command {
                command: name,
                status,
            }),
        }
    }

    /// Leaves a number where a record of the controller's commands has it.
    pub fn note(&mut self, note: u32) -> Result<(), NvmeError> {
        let note = Command::note(note);
        self.administer(note, "get number of queues").map(drop)
    }

    /// Describes `what`. The shortest use of a typed buffer: memory, the device's for as long as
    /// the command runs, and ours again.
    ///
    /// # Errors
    /// [`NvmeError`]; see [`settle`] for the memory.
    pub fn identify(
        &mut self,
        client: &Client<Host, T>,
        what: Identify,
    ) -> Result<CpuBuffer<Host, FromDevice>, NvmeError> {
        let len = ByteCount(GRANULE);
        let buffer = client.buffer(len).ok_or(NvmeError::NoMemory(len))?;
        let lent = client.give(buffer)?;
        let data = [(lent.iova(), len)];
        let done = self.administer_with(data, |data| Command::identify(what, data), "identify");
        settle(client, lent, done)
    }

    fn ask_about(&mut self, client: &Client<Host, T>) -> Result<About, NvmeError> {
        let page = self.identify(client, Identify::Controller)?;
        let text = |at, len| -> Result<String, NvmeError> {
            let mut bytes = vec![0; len];
            page.read(ByteCount(at), &mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim().to_string())
        };
        let (mut transfer, mut shutdown, mut namespaces) = ([0], [0; 4], [0; 4]);
        page.read(ByteCount(77), &mut transfer)?;
        page.read(ByteCount(88), &mut shutdown)?;
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
            shutdown_limit: Duration::from_micros(u32::from_le_bytes(shutdown).into()),
        })
    }

    /// Makes a pair of I/O queues.
    ///
    /// # Errors
    /// [`NvmeError`]. What the controller refused is unmapped at once; what it did not answer
    /// about, or knows half of, when it ends.
    pub fn create_queue(&mut self, depth: Depth, told: Told) -> Result<QueuePair, NvmeError> {
        let id = QueueId(self.queues + 1);
        let window = self.window.clone();
        let pair = QueuePair::new(&self.client, window, self.capabilities, id, depth)?;
        let (entries, at) = (pair.entries(), pair.completion_at());
        let completion = Command::create_completion_queue(id, entries, at, told);
        if let Err(error) = self.administer(completion, "create completion queue") {
            return Err(self.not_made(pair, error));
        }
        let submission = Command::create_submission_queue(id, entries, pair.submission_at());
        if let Err(error) = self.administer(submission, "create submission queue") {
            let half = Command::delete_completion_queue(id);
            return Err(match self.administer(half, "delete completion queue") {
                Ok(_) => self.not_made(pair, error),
                Err(_) => {
                    self.left.push(pair);
                    error
                }
            });
        }
        self.queues += 1;
        Ok(pair)
    }

    /// `error`, because of which there is no `pair`.
    fn not_made(&mut self, pair: QueuePair, error: NvmeError) -> NvmeError {
        match error {
            // it said no, so it has not heard of the memory; the first error is the one to tell
            NvmeError::Command { .. } => drop(pair.free()),
            _ => self.left.push(pair),
        }
        error
    }

    /// Ends a pair of I/O queues, the last that was made and not ended; nothing is under way in it.
    ///
    /// # Errors
    /// [`NvmeError`]; its memory is unmapped when the controller ends then.
    pub fn delete_queue(&mut self, pair: QueuePair) -> Result<(), NvmeError> {
        let id = pair.id();
        let submission = Command::delete_submission_queue(id);
        let ended = self.administer(submission, "delete submission queue");
        let completion = Command::delete_completion_queue(id);
        let ended = ended.and_then(|_| self.administer(completion, "delete completion queue"));
        if let Err(error) = ended {
            self.left.push(pair);
            return Err(error);
        }
        if self.queues == id.0 {
            self.queues -= 1;
        }
        pair.free().map_err(unmapped)
    }

    /// Lets it shut down, disables it and frees its rings.
    ///
    /// # Errors
    /// [`NvmeError`]; where it could not be disabled they stay mapped. One that does not shut down
    /// is disabled all the same.
    pub fn shut_down(mut self) -> Result<(), NvmeError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), NvmeError> {
        let Some(admin) = self.admin.take() else {
            return Ok(());
        };
        let asked = shut_down(&*self.window, self.about.shutdown_limit);
        disable(&*self.window, self.capabilities)?;
        let left = self.left.drain(..).map(QueuePair::free);
        let left: Vec<_> = left.chain([admin.free()]).collect();
        asked?;
        left.into_iter()
            .collect::<Result<(), _>>()
            .map_err(unmapped)
    }
}

impl<T: Translator<Host>> Drop for Controller<T> {
    fn drop(&mut self) {
        // what it may still write to stays mapped
        let _ = self.end();
    }
}

fn unmapped(error: UnmapError) -> NvmeError {
    ioatlas_dma::dma_api::DmaUnmapError::<ioatlas_dma::dma_api::Lent>::Direct(error).into()
}

/// Asks for a normal shutdown, if the controller can answer: it runs and has not failed.
fn shut_down(window: &dyn RegisterWindow, limit: Duration) -> Result<(), NvmeError> {
    let (configured, status) = (window.read32(CC), window.read32(CSTS));
    let runs = configured & CC_ENABLE != 0 && status & (CSTS_READY | CSTS_FATAL) == CSTS_READY;
    if !runs {
        return Ok(());
    }
    window.write32(CC, configured & !CC_SHUTDOWN | CC_SHUTDOWN_NORMAL);
    Awaited::ShutDown.by(window, limit)
}

fn disable(window: &dyn RegisterWindow, capabilities: Capabilities) -> Result<(), NvmeError> {
    let configured = window.read32(CC);
    window.write32(CC, configured & !(CC_ENABLE | CC_SHUTDOWN));
    Awaited::Idle.by(window, capabilities.ready_limit())
}

/// What a controller is to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Awaited {
    Ready,
    ShutDown,
    Idle,
}

impl Awaited {
    fn is_in(self, status: u32) -> bool {
        match self {
            Awaited::Ready => status & CSTS_READY != 0,
            Awaited::ShutDown => status & CSTS_SHUTDOWN == CSTS_SHUTDOWN_COMPLETE,
            Awaited::Idle => status & CSTS_READY == 0,
        }
    }

    fn by(self, window: &dyn RegisterWindow, limit: Duration) -> Result<(), NvmeError> {
        // a loaded machine may take longer than the controller says
        let limit = limit.max(Duration::from_secs(60));
        let mut last = 0;
        let nap = Idle::Nap(Duration::from_millis(1));
        let done = nap.until(limit, || {
            last = window.read32(CSTS);
            match last {
                GONE => Some(Err(NvmeError::Gone)),
                _ if self.is_in(last) => Some(Ok(())),
                // it stays so until it is reset, which is what disables it
                _ if self != Awaited::Idle && last & CSTS_FATAL != 0 => {
                    Some(Err(NvmeError::Fatal(last)))
                }
                _ => None,
            }
        });
        done.unwrap_or_else(|TimedOut(waited)| {
            Err(NvmeError::NotReady {
                wanted: match self {
                    Awaited::Ready => "ready",
                    Awaited::ShutDown => "shut down",
                    Awaited::Idle => "idle",
                },
                waited,
                status: last,
            })
        })
    }
}
