// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A small front end: `vhost`'s, an [`IotlbServer`], memory and queues, and no VMM around it. For
//! tests, load generators, and as an example of how the parts fit.
//!
//! Everything that `vhost::vhost_user::Frontend` does is left to it; message 22 goes over a
//! duplicate of its socket, in turns.
//!
//! Lock order: `server's held -> turn`.

use super::{
    ChannelError, IoPageTable, IotlbServer, ServerConfig, UserChannel,
    channel::{MissInbox, shut_down},
};
use crate::{
    log_limit::peer_log,
    protocol::{ACCESS_PLATFORM, message::FrontAddr, misses::IN_FLIGHT},
};
use ioatlas_dma::units::*;
use rustix::fs::{MemfdFlags, SealFlags};
use std::{
    fs::File,
    io,
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread::JoinHandle,
    time::Duration,
};
use vhost::{
    VhostBackend, VhostUserMemoryRegionInfo, VringConfigData,
    vhost_user::{
        Frontend, VhostUserFrontend,
        message::{VhostUserHeaderFlag, VhostUserProtocolFeatures},
    },
};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// What a front end asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FrontEndConfig {
    /// Virtio features that it must have.
    pub features: u64,
    /// Such as it takes where they are offered.
    pub optional: u64,
    /// Queues that it uses.
    pub queues: u16,
    /// How it answers misses.
    pub server: ServerConfig,
    /// How long it waits for the back end's answers: to each message 22, and to all requests of the
    /// session's set-up, or of a queue's start or stop, together.
    pub answer: Duration,
}

impl FrontEndConfig {
    /// It must have these features, and uses so many queues; no other features, the default server,
    /// five seconds for each answer.
    pub fn new(features: u64, queues: u16) -> Self {
        FrontEndConfig {
            features,
            optional: 0,
            queues,
            server: ServerConfig::default(),
            answer: Duration::from_secs(5),
        }
    }
}

ioatlas_dma::setters!(const FrontEndConfig {
    optional: u64,
    server: ServerConfig,
    answer: Duration,
});

/// Why a front end cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum FrontEndError {
    /// The back end refused a request, or hung up.
    #[error("{0}: {1}")]
    Request(&'static str, #[source] vhost::Error),
    /// It did not answer in time. Its socket is shut down: `vhost` would wait for ever.
    #[error(
        "the back end at the other end of the socket did not answer during {what} within {waited:?}"
    )]
    Silent {
        /// What was going on.
        what: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// Features that are needed are not offered.
    #[error("the back end lacks features {0:#x}")]
    Lacks(u64),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Memory cannot be had.
    #[error("guest memory: {0}")]
    Memory(String),
}

/// Where the parts of a ring are: IOVAs with an IOMMU, front-end addresses without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingAddresses {
    /// Descriptor table, or descriptor ring.
    pub descriptors: u64,
    /// Available ring, or driver event suppression.
    pub driver: u64,
    /// Used ring, or device event suppression.
    pub device: u64,
}

/// The event file descriptors of a queue.
#[derive(Debug)]
pub struct QueueEvents {
    /// To be raised when buffers are available.
    pub kick: EventFd,
    /// Raised when buffers were used.
    pub call: EventFd,
    /// Raised when the queue stops because of an error.
    pub err: EventFd,
}

/// A front end that is connected to a back end.
pub struct FrontEnd<T: IoPageTable> {
    frontend: Frontend,
    server: Arc<IotlbServer<T, UserChannel>>,
    turn: Arc<Mutex<()>>,
    memory: GuestMemoryMmap<()>,
    features: u64,
    control: UnixStream,
    back: UnixStream,
    inbox: MissInbox,
    answer: Duration,
    misses: Option<JoinHandle<()>>,
    /// Why the thread that answers misses has ended.
    unanswered: Arc<OnceLock<ChannelError>>,
}

/// A piece of anonymous memory as a file, sealed against shrinking or not.
///
/// # Errors
/// Those of `memfd_create`, `ftruncate` and the sealing `fcntl`.
pub fn memory_file(len: ByteCount, sealed: Sealed) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create(c"guest", flags)?);
    file.set_len(len.0)?;
    if sealed == Sealed::Yes {
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
    }
    Ok(file)
}

/// Whether a file can be truncated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sealed {
    /// It has the seal `F_SEAL_SHRINK`.
    Yes,
    /// It has not, and can be truncated.
    No,
}

impl<T: IoPageTable + 'static> FrontEnd<T> {
    /// Sets a session up: features, back channel, memory. `regions` are guest address, length and
    /// file of each piece of memory. A thread answers misses.
    ///
    /// # Errors
    /// See [`FrontEndError`]; `control` is closed then.
    pub fn connect(
        control: UnixStream,
        config: FrontEndConfig,
        regions: Vec<(u64, ByteCount, File)>,
        table: T,
    ) -> Result<Self, FrontEndError> {
        let mut front_end = Self::connect_unserved(control, config, regions, table)?;
        let (server, back) = (front_end.server.clone(), front_end.back.try_clone()?);
        // A back end may be quiet for as long as it likes here; the socket's end ends the wait.
        back.set_read_timeout(None)?;
        let unanswered = front_end.unanswered.clone();
        let misses = std::thread::Builder::new()
            .name("misses".into())
            .spawn(move || {
                let why = serve(&server, &back);
                // It is set already where we hang up ourselves.
                if unanswered.get().is_none() {
                    peer_log!(Error, "misses are not answered any more: {why}");
                }
                let _ = unanswered.set(why);
                shut_down(&back);
            })?;
        front_end.misses = Some(misses);
        Ok(front_end)
    }

    /// The same, but misses are answered only when [`answer_misses`](Self::answer_misses) is
    /// called: for a caller that polls anyway, and for which a thread more is a switch more on the
    /// way of every miss.
    ///
    /// # Errors
    /// See [`FrontEndError`]; `control` is closed then.
    pub fn connect_unserved(
        control: UnixStream,
        config: FrontEndConfig,
        regions: Vec<(u64, ByteCount, File)>,
        table: T,
    ) -> Result<Self, FrontEndError> {
        let watched = control.try_clone()?;
        bounded(&watched, config.answer, "the session's set-up", || {
            Self::set_up(control, config, regions, table)
        })
    }

    fn set_up(
        control: UnixStream,
        config: FrontEndConfig,
        regions: Vec<(u64, ByteCount, File)>,
        table: T,
    ) -> Result<Self, FrontEndError> {
        control.set_read_timeout(Some(config.answer))?;
        let mut frontend = Frontend::from_stream(control.try_clone()?, config.queues.into());
        let ask = |what| move |e| FrontEndError::Request(what, e);
        frontend.set_owner().map_err(ask("SET_OWNER"))?;
        let offered = frontend.get_features().map_err(ask("GET_FEATURES"))?;
        let lacks = config.features & !offered;
        if lacks != 0 {
            return Err(FrontEndError::Lacks(lacks));
        }
        let protocol = frontend
            .get_protocol_features()
            .map_err(ask("GET_PROTOCOL_FEATURES"))?;
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::CONFIG;
        frontend
            .set_protocol_features(protocol & wanted)
            .map_err(ask("SET_PROTOCOL_FEATURES"))?;
        let features = config.features | config.optional & offered;
        frontend
            .set_features(features)
            .map_err(ask("SET_FEATURES"))?;
        // From here on every request is acknowledged.
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);

        let (back, theirs) = UnixStream::pair()?;
        back.set_read_timeout(Some(config.answer))?;
        // It may ask for replies to its misses, and not read them.
        back.set_write_timeout(Some(config.answer))?;
        // Without an IOMMU a back end has nothing to say there, and need not know it.
        let demanded = config.features & ACCESS_PLATFORM != 0;
        if demanded || protocol.contains(VhostUserProtocolFeatures::BACKEND_REQ) {
            frontend
                .set_backend_request_fd(&theirs)
                .map_err(ask("SET_BACKEND_REQ_FD"))?;
        }
        drop(theirs);

        let ranges: Vec<_> = regions
            .into_iter()
            .map(|(guest, len, file)| {
                (
                    GuestAddress(guest),
                    len.0 as usize,
                    Some(FileOffset::new(file, 0)),
                )
            })
            .collect();
        let memory = GuestMemoryMmap::from_ranges_with_files(ranges)
            .map_err(|e| FrontEndError::Memory(e.to_string()))?;
        let turn = Arc::new(Mutex::new(()));
        let channel = UserChannel::new(control.try_clone()?, turn.clone());
        let server = Arc::new(IotlbServer::new(table, channel, config.server));
        let mut front_end = FrontEnd {
            frontend,
            server,
            turn,
            memory,
            features,
            control,
            back,
            inbox: MissInbox::default(),
            answer: config.answer,
            misses: None,
            unanswered: Arc::default(),
        };
        front_end.send_memory()?;
        Ok(front_end)
    }

    /// Answers misses that have come, and returns how many messages there were: no more than a back
    /// end of ours has under way, since one that asks without end must not keep the caller. Only
    /// for sessions of [`connect_unserved`](Self::connect_unserved): two readers would
    /// take each other's bytes.
    ///
    /// # Errors
    /// The back end hung up, sent no IOTLB message or half of one, or did not acknowledge an answer
    /// or read a reply in time.
    pub fn answer_misses(&mut self) -> Result<usize, ChannelError> {
        let mut count = 0;
        while count < IN_FLIGHT
            && let Some(message) = self.inbox.next(&self.back)?
        {
            self.server.handle(&message)?;
            count += 1;
        }
        Ok(count)
    }

    /// Sends the memory table (again).
    ///
    /// # Errors
    /// The back end refuses it, or does not answer in time.
    pub fn share_memory(&mut self) -> Result<(), FrontEndError> {
        let control = self.control.try_clone()?;
        bounded(&control, self.answer, "the sharing of memory", || {
            self.send_memory()
        })
    }

    fn send_memory(&mut self) -> Result<(), FrontEndError> {
        let infos: Vec<_> = self
            .memory
            .iter()
            .map(VhostUserMemoryRegionInfo::from_guest_region)
            .collect::<Result<_, _>>()
            .map_err(|e| FrontEndError::Memory(e.to_string()))?;
        let _turn = self.turn();
        self.frontend
            .set_mem_table(&infos)
            .map_err(|e| FrontEndError::Request("SET_MEM_TABLE", e))?;
        Ok(())
    }

    /// Why misses are not answered any more, once the thread of [`connect`](Self::connect) has
    /// ended. `None` while they are, and in sessions of
    /// [`connect_unserved`](Self::connect_unserved), where [`answer_misses`](Self::answer_misses)
    /// says it.
    pub fn unanswered(&self) -> Option<&ChannelError> {
        self.unanswered.get()
    }

    /// Guest memory, by guest-physical address.
    pub fn memory(&self) -> &GuestMemoryMmap<()> {
        &self.memory
    }

    /// Where the byte at a guest-physical address is in this process, which is what updates say.
    ///
    /// # Panics
    /// If it is outside guest memory.
    pub fn front_addr(&self, guest: u64) -> FrontAddr {
        let host = self.memory.get_host_address(GuestAddress(guest));
        FrontAddr(host.expect("an address in guest memory") as usize as u64)
    }

    /// The server that answers misses.
    pub fn server(&self) -> &Arc<IotlbServer<T, UserChannel>> {
        &self.server
    }

    /// The lock of the control socket: while a thread holds it, nothing is requested or answered.
    pub fn turn_handle(&self) -> Arc<Mutex<()>> {
        self.turn.clone()
    }

    /// `vhost`'s front end, for requests that are not here.
    pub fn frontend(&mut self) -> (&mut Frontend, MutexGuard<'_, ()>) {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        (&mut self.frontend, turn)
    }

    /// The features that were negotiated, as virtio numbers them.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Starts a queue, with new event file descriptors.
    ///
    /// # Errors
    /// The back end refuses, or does not answer within [`FrontEndConfig::answer`].
    pub fn start_queue(
        &mut self,
        queue: usize,
        size: u16,
        ring: RingAddresses,
        base: u16,
    ) -> Result<QueueEvents, FrontEndError> {
        let new = || EventFd::new(EFD_NONBLOCK);
        let events = QueueEvents {
            kick: new()?,
            call: new()?,
            err: new()?,
        };
        let addresses = VringConfigData {
            queue_max_size: size,
            queue_size: size,
            flags: 0,
            desc_table_addr: ring.descriptors,
            used_ring_addr: ring.device,
            avail_ring_addr: ring.driver,
            log_addr: None,
        };
        let turn = self.turn.clone();
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let ask = |what| move |e| FrontEndError::Request(what, e);
        let f = &mut self.frontend;
        bounded(&self.control, self.answer, "the start of a queue", || {
            f.set_vring_num(queue, size).map_err(ask("SET_VRING_NUM"))?;
            f.set_vring_base(queue, base)
                .map_err(ask("SET_VRING_BASE"))?;
            f.set_vring_addr(queue, &addresses)
                .map_err(ask("SET_VRING_ADDR"))?;
            f.set_vring_err(queue, &events.err)
                .map_err(ask("SET_VRING_ERR"))?;
            f.set_vring_call(queue, &events.call)
                .map_err(ask("SET_VRING_CALL"))?;
            f.set_vring_kick(queue, &events.kick)
                .map_err(ask("SET_VRING_KICK"))?;
            f.set_vring_enable(queue, true)
                .map_err(ask("SET_VRING_ENABLE"))
        })?;
        Ok(events)
    }

    /// Stops a queue; returns where it stands.
    ///
    /// # Errors
    /// The back end refuses, or does not answer within [`FrontEndConfig::answer`].
    pub fn stop_queue(&mut self, queue: usize) -> Result<u32, FrontEndError> {
        let _turn = self.turn();
        bounded(&self.control, self.answer, "the stop of a queue", || {
            let base = self.frontend.get_vring_base(queue);
            base.map_err(|e| FrontEndError::Request("GET_VRING_BASE", e))
        })
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs requests that may wait for ever otherwise: when patience ends, the socket is
/// shut down under them.
fn bounded<T>(
    control: &UnixStream,
    patience: Duration,
    what: &'static str,
    requests: impl FnOnce() -> Result<T, FrontEndError>,
) -> Result<T, FrontEndError> {
    let (done, ended) = mpsc::channel::<()>();
    let (result, expired) = std::thread::scope(|scope| {
        let watchdog = scope.spawn(move || {
            let expired = ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout);
            if expired {
                let _ = control.shutdown(Shutdown::Both);
            }
            expired
        });
        let result = requests();
        drop(done);
        (result, watchdog.join().unwrap_or(false))
    });
    match expired {
        // Also where all was well a moment too late: the socket is gone.
        true => Err(FrontEndError::Silent {
            what,
            waited: patience,
        }),
        false => result,
    }
}

/// Answers misses until the back channel ends.
fn serve<T: IoPageTable>(server: &IotlbServer<T, UserChannel>, back: &UnixStream) -> ChannelError {
    loop {
        let handled = UserChannel::receive(back).and_then(|message| server.handle(&message));
        match handled {
            Ok(()) => (),
            // The back end does not hold it: it will ask again, or fail.
            Err(ChannelError::Refused(message, code)) => {
                peer_log!(Warn, "the back end refused {message:?} with code {code}");
            }
            Err(e) => return e,
        }
    }
}

impl<T: IoPageTable> Drop for FrontEnd<T> {
    fn drop(&mut self) {
        let ours = io::ErrorKind::ConnectionAborted.into();
        let _ = self.unanswered.set(ChannelError::Closed(ours));
        let _ = self.control.shutdown(Shutdown::Both);
        let _ = self.back.shutdown(Shutdown::Both);
        if let Some(misses) = self.misses.take() {
            let _ = misses.join();
        }
    }
}
