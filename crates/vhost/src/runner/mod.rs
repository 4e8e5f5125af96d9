// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Runs a device behind a vhost-user socket, with an IOMMU or without.
//!
//! Vocabulary: a *worker* is one thread's queues with its reader; the *control thread* is the one
//! that serves the socket.
//!
//! # How it hangs together
//! The control thread looks at each request first (`protocol::socket`): message 22 goes to the
//! cache, anything else to `vhost`'s own request handler, which calls `session`. Workers (`worker`)
//! call the device when a queue is kicked.
//!
//! Without `VIRTIO_F_ACCESS_PLATFORM` the cache holds the memory table itself, guest-physical to
//! host, pinned; so devices have one way to memory, and an address outside the table is a miss that
//! is never answered.
//!
//! # Invariants
//! * Whatever the cache names is mapped: the table changes with all workers' locks held and the
//!   cache cleared.
//! * A queue's ring is pinned in the cache while it is live.
//! * An invalidation is acknowledged when the cache says that guards have been dropped, and in the
//!   order of the socket.
//! * An error of the protocol ends the connection, one of a queue that queue; never the process. A
//!   new connection starts from nothing.
//! * A queue's thread that panics ends the runner: its queues would stand still, and nothing would
//!   show it.
//!
//! Lock order: `workers, by number -> misses' state`. The session is the control thread's alone.
//! The stop event's lock is taken alone, too.
//!
//! Not handled: in-flight descriptor tracking (`INFLIGHT_SHMFD`), dirty logging, postcopy, in-band
//! notifications.

mod device;
#[allow(unsafe_code)] // asynchronous I/O has no safe interface
mod event_fd;
mod iotlb;
mod listen;
mod queue_worker;
mod requests;
mod ring;
mod session;
mod stats;
mod worker;

pub use device::{Device, Event, Failure, Next, Stop};
pub use listen::{Access, Inherited, ListenError, Listener, Stale};
pub use queue_worker::{CHAINS_PER_BATCH, Chain, QueueWorker};
pub use ring::{EVENT_IDX, RING_PACKED, Ring, RingParts};
pub use stats::{ControlStats, Observer, RunnerStats};

pub use crate::protocol::{
    ACCESS_PLATFORM, VERSION_1,
    memory::{Files, Shrink},
};

use crate::{
    cache::{DeviceIotlb, ReaderError},
    guest_memory::{IovaMemory, Patience},
    log_limit::peer_log,
    protocol::{
        foreign,
        message::Header,
        misses::MissChannel,
        socket::{self, Next as Request, SocketError, Woken},
    },
};
use event_fd::Raiser;
use rustix::net::sockopt::Timeout;
use session::Session;
use std::{
    any::Any,
    io,
    net::Shutdown,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};
use vhost::vhost_user::BackendReqHandler;
use worker::Shared;

/// Whether a device may run without an IOMMU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Iommu {
    /// As the front end wants.
    #[default]
    Offered,
    /// Features without `VIRTIO_F_ACCESS_PLATFORM` are refused: no device without protection.
    Demanded,
}

/// How a runner behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Whether a device may run without an IOMMU.
    pub iommu: Iommu,
    /// What is done about memory that could shrink.
    pub shrink: Shrink,
    /// Which files may hold guest memory.
    pub files: Files,
    /// How long queues wait for answers to misses.
    pub patience: Patience,
    /// How long the front end may take for the rest of a message, for reading an answer, and for
    /// its first message after it has connected to a socket of ours.
    pub message: Duration,
    /// How long a client waits between two attempts to connect.
    pub reconnect: Duration,
    /// Sleep between two calls of a device that wants to be called again; zero for polling devices.
    pub pause_between_polls: Duration,
}

ioatlas_dma::setters!(const Config {
    iommu: Iommu,
    shrink: Shrink,
    files: Files,
    patience: Patience,
    message: Duration,
    reconnect: Duration,
    pause_between_polls: Duration,
});

impl Default for Config {
    fn default() -> Self {
        Config {
            iommu: Iommu::default(),
            shrink: Shrink::default(),
            files: Files::default(),
            patience: Patience::default(),
            message: Duration::from_secs(5),
            reconnect: Duration::from_millis(500),
            pause_between_polls: Duration::ZERO,
        }
    }
}

/// Why there is no runner.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// Other code could put entries into the cache.
    #[error("the device IOTLB is shared; the runner must be its only owner")]
    SharedCache,
    /// Queues that no thread serves, or two do; or too many.
    #[error("queue {0} is not served by just one thread")]
    Threads(u16),
    /// The cache has too few readers.
    #[error(transparent)]
    Reader(#[from] ReaderError),
    /// The device's queues cannot be.
    #[error("queues of {0} entries: {1}")]
    Queue(u16, #[source] virtio_queue::Error),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// How a connection ended.
#[derive(Debug)]
pub enum End {
    /// The front end hung up.
    HungUp,
    /// The runner was stopped.
    Stopped,
    /// A queue's thread has ended before its time; why. The runner serves no front end any more.
    Failed(String),
    /// The front end broke the protocol, or asked for what cannot be.
    Broken(Broken),
}

/// What was wrong with a connection.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // its fields say it
#[non_exhaustive]
pub enum Broken {
    /// Found before `vhost` saw it.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Found by `vhost`, or by the session below it.
    #[error("request {request}: {why}")]
    Request {
        request: u32,
        /// What `vhost` says is wrong.
        why: vhost::vhost_user::Error,
    },
}

/// A device with its threads, ready to be connected.
pub struct Runner<D, T: DeviceIotlb> {
    device: Arc<D>,
    cache: Arc<T>,
    misses: Arc<MissChannel>,
    workers: Arc<[Shared<T::Reader>]>,
    threads: Vec<JoinHandle<()>>,
    config: Config,
    stop: Arc<StopEvent>,
    control: Arc<Mutex<ControlStats>>,
}

/// Stops a runner from elsewhere.
#[derive(Clone, Debug)]
pub struct StopHandle(Arc<StopEvent>);

/// What stops a runner: an event, never taken back, and the connection, since its thread may be
/// busy answering a front end that does not read.
struct StopEvent {
    event: OwnedFd,
    /// Ends all workers' threads: none begins to call the device any more. Waits for nothing.
    end: Box<dyn Fn() + Send + Sync>,
    /// Takes all rings out of service. Waits for those that call the device.
    quiesce: Box<dyn Fn() + Send + Sync>,
    /// The socket of the connection that is served.
    stream: Mutex<Option<UnixStream>>,
    /// Why a queue's thread has ended before its time.
    failed: Mutex<Option<String>>,
}

impl std::fmt::Debug for StopEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StopEvent")
            .field("event", &self.event)
            .finish_non_exhaustive()
    }
}

impl StopEvent {
    fn stream(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn failed(&self) -> MutexGuard<'_, Option<String>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn is_raised(&self) -> bool {
        let now = Some(Duration::ZERO);
        let woken = socket::wait_for(&self.event, &self.event, now);
        woken.is_ok_and(|woken| woken != Woken::TimedOut)
    }
    /// Stops queues, then the connection.
    fn finish(&self) {
        // A front end that sees the connection end takes for done what the used rings say then, and
        // gives the rest to the next back end (QEMU does). What is used later is used twice.
        (self.quiesce)();
        // `vhost` tries to send its answers for ever; now it cannot.
        if let Some(stream) = &*self.stream()
            && let Err(e) = stream.shutdown(Shutdown::Both)
        {
            log::debug!("the connection is gone already: {e}");
        }
    }
}

impl StopHandle {
    /// Ends the connection and every later one. When it returns, no device is called any more; but
    /// a device that calls it would wait for itself, so there it returns at once, and another
    /// thread does the rest.
    pub fn stop(&self) {
        if let Err(e) = event_fd::raise(&self.0.event) {
            log::error!("cannot stop a runner: {e}");
        }
        (self.0.end)();
        if !worker::is_worker() {
            return self.0.finish();
        }
        let stop = self.0.clone();
        let builder = std::thread::Builder::new().name("vhost-stop".into());
        if let Err(e) = builder.spawn(move || stop.finish()) {
            log::error!("a connection ends only when its socket's timeout does: {e}");
        }
    }
}

impl<D: Device, T: DeviceIotlb> Runner<D, T> {
    /// Starts the device's threads. `cache` must be empty, and not shared.
    ///
    /// # Errors
    /// See [`RunnerError`].
    #[allow(unsafe_code)]
    pub fn new(device: D, mut cache: Arc<T>, config: Config) -> Result<Self, RunnerError> {
        if Arc::get_mut(&mut cache).is_none() || cache.stats().updates > 0 {
            return Err(RunnerError::SharedCache);
        }
        let device = Arc::new(device);
        let misses = Arc::new(MissChannel::default());
        let masks = device.queues_per_thread();
        let serves = |mask: &u64, queue: u16| queue < 64 && mask >> queue & 1 == 1;
        for queue in 0..device.queues() {
            if masks.iter().filter(|mask| serves(mask, queue)).count() != 1 {
                return Err(RunnerError::Threads(queue));
            }
        }
        let mut workers = Vec::new();
        for (thread, mask) in masks.iter().enumerate() {
            let size = device.max_queue_size();
            let raiser = Arc::new(Raiser::new()?);
            let rings = (0..device.queues())
                .filter(|&queue| serves(mask, queue))
                .map(|queue| Ring::new(queue, size, raiser.clone()))
                .collect::<Result<Vec<_>, _>>()
                .map_err(|e| RunnerError::Queue(size, e))?;
            // SAFETY: nothing but the session puts entries into the cache, since no other code has
            // it (checked above; later only observers, which read). The session's invariants are
            // those that are asked for.
            let memory =
                unsafe { IovaMemory::new(cache.reader()?, misses.clone(), config.patience) };
            let worker = QueueWorker::new(thread, rings, memory);
            workers.push(Shared::new(worker, misses.clone(), device.events(thread))?);
        }
        let workers: Arc<[Shared<T::Reader>]> = workers.into();
        let end = {
            let workers = workers.clone();
            Box::new(move || workers.iter().for_each(Shared::end))
        };
        let quiesce = {
            let workers = workers.clone();
            Box::new(move || {
                for shared in workers.iter() {
                    shared.take().rings.iter_mut().for_each(Ring::stop);
                }
            })
        };
        let mut runner = Runner {
            device,
            cache,
            misses,
            workers,
            threads: Vec::new(),
            config,
            stop: Arc::new(StopEvent {
                event: event_fd::new()?,
                end,
                quiesce,
                stream: Mutex::new(None),
                failed: Mutex::new(None),
            }),
            control: Arc::default(),
        };
        for thread in 0..runner.workers.len() {
            let (workers, device) = (runner.workers.clone(), runner.device.clone());
            let stop = runner.stop_handle();
            let name = format!("vhost-queues-{thread}");
            let builder = std::thread::Builder::new().name(name);
            let handle = builder.spawn(move || {
                // What a panic may have left half done is a worker's, which is used no more.
                let run = AssertUnwindSafe(|| workers[thread].run(&*device, &config));
                let why = match catch_unwind(run) {
                    Ok(Ok(())) => return,
                    Ok(Err(why)) => format!("a queue's thread failed: {why}"),
                    Err(panic) => format!("a queue's thread panicked: {}", text_of(&*panic)),
                };
                log::error!("{why}");
                stop.0.failed().get_or_insert(why);
                stop.stop();
            })?;
            runner.threads.push(handle);
        }
        Ok(runner)
    }

    /// The device that it runs.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The same, for another thread.
    pub fn shared_device(&self) -> Arc<D> {
        self.device.clone()
    }

    /// What stops it, from any thread.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(self.stop.clone())
    }

    /// What reads its statistics, from any thread.
    pub fn observer(&self) -> Observer<T> {
        Observer::new(
            self.cache.clone(),
            self.misses.clone(),
            self.control.clone(),
        )
    }

    /// Serves one front end after the other, until stopped. One that says nothing after it has
    /// connected, for longer than [`Config::message`], makes way for the next.
    ///
    /// # Errors
    /// The listener's own; or a queue's thread has ended before its time.
    pub fn serve(&mut self, listener: &UnixListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let mut told = false;
        loop {
            match socket::wait_for(listener, &self.stop.event, None)? {
                Woken::Stopped => return self.stopped(),
                _ => match accept(listener) {
                    Ok(stream) => {
                        told = false;
                        stream.set_nonblocking(false)?;
                        let end = self.session(stream, Silence::Bounded);
                        if let End::Stopped | End::Failed(_) = end {
                            return self.stopped();
                        }
                    }
                    Err(e) if is_passing(&e) => (),
                    Err(e) if is_shortage(&e) => {
                        if !std::mem::replace(&mut told, true) {
                            log::warn!("cannot accept a connection: {e}; trying again");
                        }
                        let (stop, pause) = (&self.stop.event, Some(SHORTAGE));
                        if socket::wait_for(stop, stop, pause)? != Woken::TimedOut {
                            return self.stopped();
                        }
                    }
                    Err(e) => return Err(e),
                },
            }
        }
    }

    /// What the end of service is to the caller.
    fn stopped(&self) -> io::Result<()> {
        match self.stop.failed().clone() {
            Some(why) => Err(io::Error::other(why)),
            None => Ok(()),
        }
    }

    /// Connects to a front end that listens, and again whenever the connection ends, until stopped.
    ///
    /// # Errors
    /// The stop event's own; or a queue's thread has ended before its time.
    pub fn connect(&mut self, path: &Path) -> io::Result<()> {
        let mut told = false;
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => {
                    told = false;
                    if let End::Stopped | End::Failed(_) = self.serve_stream(stream) {
                        return self.stopped();
                    }
                }
                Err(e) if !told => {
                    peer_log!(Info, "{}: {e}; trying again", path.display());
                    told = true;
                }
                Err(_) => (),
            }
            let pause = Some(self.config.reconnect);
            if socket::wait_for(&self.stop.event, &self.stop.event, pause)? != Woken::TimedOut {
                return self.stopped();
            }
        }
    }

    /// Serves the front end at the other end of `stream`, until it hangs up, breaks the protocol,
    /// or the runner is stopped. How it ended is in the log, too.
    pub fn serve_stream(&mut self, stream: UnixStream) -> End {
        self.session(stream, Silence::Unbounded)
    }

    fn session(&mut self, stream: UnixStream, silence: Silence) -> End {
        let end = match stream.try_clone() {
            Ok(ours) => {
                // A thread that raised the event before did not see this stream; the event is seen
                // before anything is answered.
                *self.stop.stream() = Some(ours);
                let end = self.connection(stream, silence);
                // The last descriptor of it.
                if let Some(ours) = self.stop.stream().take() {
                    foreign::close_stream(ours);
                }
                match (self.stop.failed().clone(), self.stop.is_raised()) {
                    (Some(why), _) => End::Failed(why),
                    (None, true) => End::Stopped,
                    (None, false) => end,
                }
            }
            Err(e) => End::Broken(SocketError::Io(e).into()),
        };
        match &end {
            End::HungUp => peer_log!(Info, "the front end hung up"),
            End::Stopped | End::Failed(_) => log::info!("stopped"),
            End::Broken(why) => peer_log!(Error, "connection closed: {why}"),
        }
        end
    }

    fn connection(&self, stream: UnixStream, mut silence: Silence) -> End {
        let broken = |e: io::Error| End::Broken(SocketError::Io(e).into());
        let session = Session::new(self);
        let handler_end = match stream.try_clone() {
            Ok(end) => end,
            Err(e) => return broken(e),
        };
        for timeout in [Timeout::Recv, Timeout::Send] {
            let limit = Some(self.config.message);
            if let Err(e) = rustix::net::sockopt::set_socket_timeout(&stream, timeout, limit) {
                return broken(e.into());
            }
        }
        let session = Arc::new(Mutex::new(session));
        let mut handler = BackendReqHandler::from_stream(handler_end, session.clone());
        let session_of = || session.lock().unwrap_or_else(PoisonError::into_inner);
        // From here on a thread that stops us shuts the socket down; one that did so before did not
        // know it. So no message needs a look at two files before it is read, which is a system
        // call for each.
        if self.stop.is_raised() {
            return End::Stopped;
        }
        loop {
            let next = socket::next(&stream, self.config.message, self.config.files);
            if !matches!(next, Ok(Request::Nothing)) {
                silence = Silence::Unbounded;
            }
            let request = match next {
                Ok(Request::Nothing) if self.stop.is_raised() => return End::Stopped,
                Ok(Request::Nothing) if silence == Silence::Bounded => {
                    return End::Broken(SocketError::Silent(self.config.message).into());
                }
                Ok(Request::Nothing) => continue,
                Ok(Request::Iotlb(header, message)) => {
                    let code = session_of().iotlb(message);
                    match socket::acknowledge(&stream, header, code) {
                        Ok(()) => continue,
                        Err(e) if is_hang_up(&e) => return End::HungUp,
                        Err(e) => return broken(e),
                    }
                }
                Ok(Request::BadFiles(header)) => {
                    if header.needs_reply() && session_of().replies() {
                        // It ends in any case.
                        let _ = socket::acknowledge(&stream, header, 1);
                    }
                    return End::Broken(SocketError::Files.into());
                }
                Ok(Request::BackChannel(fd)) => {
                    session_of().back = Some(fd);
                    socket::SET_BACKEND_REQ_FD
                }
                Ok(Request::Known(header))
                    if header.request == socket::SET_VRING_ENABLE
                        && session_of().enables_early() =>
                {
                    match enable_early(&stream, header, &mut session_of()) {
                        Ok(true) => continue,
                        Ok(false) => header.request,
                        Err(end) => return end,
                    }
                }
                Ok(Request::Known(header)) => header.request,
                Err(SocketError::HungUp) => return End::HungUp,
                Err(e) => return End::Broken(e.into()),
            };
            if let Err(why) = handler.handle_request() {
                use vhost::vhost_user::Error;
                if let Error::Disconnected | Error::SocketBroken(_) = why {
                    return End::HungUp;
                }
                return End::Broken(Broken::Request { request, why });
            }
        }
    }
}

/// Whether a front end may say nothing for as long as it likes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Silence {
    /// Not before its first message: others may be waiting to be served.
    Bounded,
    Unbounded,
}

/// What a panic said.
fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "without a word".into())
}

/// Accepts a front end where the process has descriptors for its session, too; else it
/// stays in the queue.
fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    // The one by which the session is stopped, and the one that `vhost` has.
    let room = [listener.try_clone()?, listener.try_clone()?];
    let (stream, _) = listener.accept()?;
    drop(room);
    Ok(stream)
}

/// Enables a queue before features are set. `Ok(false)`: the message is no good,
/// and `vhost`'s to refuse.
fn enable_early<D: Device, T: DeviceIotlb>(
    stream: &UnixStream,
    header: Header,
    session: &mut Session<D, T>,
) -> Result<bool, End> {
    let read = socket::read_enable(stream, header);
    let Some((index, enable)) = read.map_err(|why| End::Broken(why.into()))? else {
        return Ok(false);
    };
    let done = session.enable(index, enable);
    if header.needs_reply() && session.replies() {
        match socket::acknowledge(stream, header, u64::from(done.is_err())) {
            Err(e) if is_hang_up(&e) => return Err(End::HungUp),
            Err(e) => return Err(End::Broken(SocketError::Io(e).into())),
            Ok(()) => (),
        }
    }
    let request = header.request;
    done.map_err(|why| End::Broken(Broken::Request { request, why }))?;
    Ok(true)
}

/// Errors of a socket whose other end is gone.
fn is_hang_up(e: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(e.kind(), BrokenPipe | ConnectionReset)
}

/// Errors of `accept` that concern one connection, not the listener.
fn is_passing(e: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(e.kind(), WouldBlock | Interrupted | ConnectionAborted)
}

/// How long is waited where the system has no descriptor or memory for a connection.
const SHORTAGE: Duration = Duration::from_millis(100);

/// Errors of `accept` that end when something is closed: the connection stays in the queue.
fn is_shortage(e: &io::Error) -> bool {
    let short = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    e.raw_os_error().is_some_and(|code| short.contains(&code))
}

impl<D, T: DeviceIotlb> Drop for Runner<D, T> {
    fn drop(&mut self) {
        for worker in self.workers.iter() {
            worker.end();
        }
        for thread in self.threads.drain(..) {
            // A panic was caught, and told of.
            let _ = thread.join();
        }
    }
}
