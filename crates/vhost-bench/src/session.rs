// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The connection to a back end: finding it, requests with an end, its health.

use crate::{
    config::{Answers, Config, Layout, Offer},
    error::BenchError,
    ram::Ram,
    ring::{DriverRing, Suppression},
    space::{GUEST_START, RINGS_BYTES, Space, Way},
};
use ioatlas_dma::units::*;
use ioatlas_vhost::{
    runner::{ACCESS_PLATFORM, EVENT_IDX, RING_PACKED, VERSION_1},
    server::*,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt},
};
use std::{
    io::{self, ErrorKind},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// `VHOST_USER_F_PROTOCOL_FEATURES`: not a feature of virtio, but of the protocol.
const PROTOCOL_FEATURES: u64 = 1 << 30;
/// `VIRTIO_NET_F_MRG_RXBUF` (virtio 1.2, 5.1.3): a frame may take several receive buffers.
pub(crate) const MRG_RXBUF: u64 = 1 << 15;

/// Where the back end is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Socket {
    /// It listens at this path.
    Connect(PathBuf),
    /// It will connect to here. The socket is removed when it did, or when it is not
    /// waited for any longer.
    Listen(PathBuf),
}

impl Socket {
    pub(crate) fn open(&self, patience: Duration) -> Result<UnixStream, BenchError> {
        match self {
            Socket::Connect(path) => connect(path, patience),
            Socket::Listen(path) => listen(path, patience),
        }
    }
}

fn connect(path: &Path, patience: Duration) -> Result<UnixStream, BenchError> {
    let failed = |e: Errno| match e {
        Errno::NOENT => BenchError::Missing(path.into()),
        Errno::CONNREFUSED => BenchError::NotListening(path.into()),
        // A queue of connections that is full, for as long as we waited.
        Errno::AGAIN => BenchError::Silent {
            what: "it accepts no connection".into(),
            waited: patience,
        },
        e => BenchError::Socket {
            path: path.into(),
            source: e.into(),
        },
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.map_err(failed)?;
    // Connecting waits for room in the listener's queue as long as sending would.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience)).map_err(failed)?;
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    rustix::net::connect(&socket, &address).map_err(failed)?;
    Ok(UnixStream::from(socket))
}

/// A socket's name, for as long as it is listened on.
struct Name<'p>(&'p Path);

impl Drop for Name<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

fn listen(path: &Path, patience: Duration) -> Result<UnixStream, BenchError> {
    let failed = |source: io::Error| match source.kind() {
        ErrorKind::AddrInUse => BenchError::InUse(path.into()),
        _ => BenchError::Socket {
            path: path.into(),
            source,
        },
    };
    let listener = UnixListener::bind(path).map_err(failed)?;
    let _name = Name(path);
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match readable(&listener, PollFlags::IN, left).map_err(failed)? {
            true => break,
            false if left.is_zero() => {
                return Err(BenchError::NoConnection {
                    path: path.into(),
                    waited: patience,
                });
            }
            false => (),
        }
    }
    let (stream, _) = listener.accept().map_err(failed)?;
    Ok(stream)
}

/// Whether something of `wanted` is the case within a time.
fn readable(fd: impl AsFd, wanted: PollFlags, time: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::new(&fd, wanted)];
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    match rustix::event::poll(&mut fds, Some(&time)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// A back end, with memory and features agreed on.
pub(crate) struct Session {
    /// Before what it lends addresses of.
    front: FrontEnd<Arc<Space>>,
    pub space: Arc<Space>,
    pub ram: Arc<Ram>,
    control: UnixStream,
    pub patience: Duration,
    events: Vec<QueueEvents>,
}

impl Session {
    pub(crate) fn new(stream: UnixStream, config: &Config) -> Result<Self, BenchError> {
        let space = Arc::new(Space::new(config));
        let (ram, file) = Ram::new(space.len())?;
        let mut features = VERSION_1 | PROTOCOL_FEATURES;
        if config.has_iommu() {
            features |= ACCESS_PLATFORM;
        }
        if config.layout == Layout::Packed {
            features |= RING_PACKED;
        }
        let mut optional = 0;
        if config.mergeable == Offer::Taken {
            optional |= MRG_RXBUF;
        }
        if config.event_index == Offer::Taken {
            optional |= EVENT_IDX;
        }
        let front_config = FrontEndConfig::new(features, 2)
            .optional(optional)
            .server(ServerConfig::default().answer(match config.answers {
                Answers::Page => Answer::Page(ByteCount(1 << config.leaf().lg2())),
                Answers::Range => Answer::Contiguous(ByteCount(1 << 30)),
            }))
            .answer(config.patience);
        stream.set_write_timeout(Some(config.patience))?;
        let control = stream.try_clone()?;
        let regions = vec![(GUEST_START, space.len(), file)];
        let front = FrontEnd::connect_unserved(stream, front_config, regions, space.clone());
        let front = front.map_err(BenchError::of_request)?;
        space.shared_at(front.front_addr(GUEST_START));
        Ok(Session {
            front,
            space,
            ram: Arc::new(ram),
            control,
            patience: config.patience,
            events: Vec::new(),
        })
    }

    /// Makes a queue's ring, and starts it.
    pub(crate) fn start<R: DriverRing>(&mut self, way: Way, size: u16) -> Result<R, BenchError> {
        let at = RINGS_BYTES as usize / 4 * usize::from(way.queue());
        let kicks = match self.front.features() & EVENT_IDX {
            0 => Suppression::Flags,
            _ => Suppression::EventIndex,
        };
        let ring = R::new(self.ram.clone(), at, size, kicks);
        // Front-end addresses where no IOMMU was negotiated.
        let off = self.front.features() & ACCESS_PLATFORM == 0;
        let front = self.front.front_addr(GUEST_START);
        let parts = ring.parts(&|offset| match off {
            true => front.0 + offset as u64,
            false => self.space.device_addr(offset as u64).0,
        });
        let queue = way.queue().into();
        let events = self.front.start_queue(queue, size, parts, ring.base());
        self.events.push(events.map_err(BenchError::of_request)?);
        Ok(ring)
    }

    /// Whether frames may be in several buffers.
    pub(crate) fn is_mergeable(&self) -> bool {
        self.front.features() & MRG_RXBUF != 0
    }

    pub(crate) fn kick(&self, way: Way) -> Result<(), BenchError> {
        match self.events[usize::from(way.queue())].kick.write(1) {
            // Full: it was kicked so often that once more says nothing.
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(()),
            other => Ok(other?),
        }
    }

    /// Answers the misses that have come; returns how many messages there were.
    pub(crate) fn answer_misses(&mut self) -> Result<usize, BenchError> {
        let answered = self.front.answer_misses();
        answered.map_err(|e| BenchError::of_channel(e, self.patience))
    }

    /// Makes the back end forget a range that is unmapped.
    pub(crate) fn invalidate(&self, iova: Iova, len: ByteCount) -> Result<(), BenchError> {
        let done = self.front.server().invalidate(iova, len);
        done.map_err(|e| BenchError::of_channel(e, self.patience))
    }

    pub(crate) fn stats(&self) -> ServerStats {
        self.front.server().stats()
    }

    /// Whether the back end is there, and its queues are live.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        for (queue, events) in self.events.iter().enumerate() {
            if events.err.read().is_ok() {
                return Err(BenchError::QueueStopped(queue as u16));
            }
        }
        let gone = PollFlags::RDHUP | PollFlags::HUP;
        match readable(&self.control, gone, Duration::ZERO)? {
            true => Err(BenchError::Died {
                during: "it hung up while frames were out".into(),
            }),
            false => Ok(()),
        }
    }

    /// Stops the receive queue, then the transmit queue.
    pub(crate) fn stop(&mut self) -> Result<(), BenchError> {
        for way in [Way::Receive, Way::Transmit] {
            let stopped = self.front.stop_queue(way.queue().into());
            stopped.map_err(BenchError::of_request)?;
        }
        Ok(())
    }
}
