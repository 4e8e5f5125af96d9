// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a back end can do wrong, each told apart.

use crate::{config::ConfigError, frames::Damage, report::Report};
use ioatlas_vhost::server::{ChannelError, FrontEndError};
use std::{io, path::PathBuf, time::Duration};

/// What a device said about a ring that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RingFault {
    /// It used more buffers than there are in the ring.
    #[error("{used} buffers were used, and {in_ring} are in the ring")]
    TooMany {
        /// How many, by its index.
        used: u16,
        /// Buffers that it had.
        in_ring: usize,
    },
    /// It used one that is not in the ring.
    #[error("buffer {id} was used, and is not in the ring")]
    NotInRing {
        /// The id that it named.
        id: u32,
    },
}

/// Why there is no result, or no good one.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // its fields and messages say it
pub enum BenchError {
    /// What was asked for cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no such socket.
    #[error("{}: no such socket; start the back end first, or listen", .0.display())]
    Missing(PathBuf),
    /// There is one, and no program listens on it.
    #[error("{}: no program listens on it; the back end that made it is gone", .0.display())]
    NotListening(PathBuf),
    /// Listening was asked for, and something of that name is there.
    #[error("{}: in use: another program listens, or a file of that name is left over", .0.display())]
    InUse(PathBuf),
    /// Listening, and no back end came.
    #[error("{}: no back end connected within {:?}", path.display(), waited)]
    NoConnection {
        path: PathBuf,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The socket cannot be used for another reason.
    #[error("{}: {source}", path.display())]
    Socket {
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The back end owes an answer or a frame, and nothing comes.
    #[error("the back end is silent: {what} for {waited:?}")]
    Silent {
        /// What the back end owes.
        what: String,
        waited: Duration,
    },
    /// The back end hung up.
    #[error("the back end died: {during}")]
    Died {
        /// What was going on.
        during: String,
    },
    /// Features are not offered that the run needs.
    #[error("the back end lacks {0}")]
    Lacks(String),
    /// It refused a request of the session's beginning or end.
    #[error("the back end refused {request}: {why}")]
    Refused {
        request: String,
        /// What is known of the reason.
        why: String,
    },
    /// What it answered is no answer.
    #[error("the back end answers wrongly: {0}")]
    WrongAnswer(String),
    /// It broke the rules of a ring.
    #[error("the back end answers wrongly: queue {queue}: {fault}")]
    Ring {
        /// 0 is the receive queue, 1 the transmit queue.
        queue: u16,
        fault: RingFault,
    },
    /// It says that it stopped a queue because of an error.
    #[error("the back end stopped queue {0} with an error")]
    QueueStopped(u16),
    /// It takes frames, and none comes back.
    #[error("the back end took {taken} frames, and none came back within {waited:?}")]
    Swallowed {
        taken: u64,
        /// How long it was waited.
        waited: Duration,
    },
    /// Frames came back damaged. The run went on to its end.
    #[error("the back end corrupts: {} frames corrupt; the first: {first}", report.frames_corrupt)]
    Corrupt {
        report: Box<Report>,
        /// What was wrong with the first.
        first: Damage,
    },
    /// At no rate that was tried did few enough frames get lost.
    #[error("at no rate down to {least:.0} frames a second was loss at most {tolerated}")]
    NoRate {
        /// The lowest that was tried.
        least: f64,
        /// The fraction that was tolerated.
        tolerated: f64,
    },
    /// A system call failed.
    #[error("memory or events: {0}")]
    Io(#[from] io::Error),
}

impl BenchError {
    /// The meaning of a failed exchange of updates, invalidations or misses.
    pub(crate) fn of_channel(error: ChannelError, patience: Duration) -> Self {
        let of_io = |what: String, e: io::Error| match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => BenchError::Silent {
                what,
                waited: patience,
            },
            _ => BenchError::Died {
                during: format!("{what} ({e})"),
            },
        };
        match error {
            ChannelError::Io(message, e) => {
                let kind = format!("{:?}", message.kind).to_lowercase();
                let at = message.iova.0;
                of_io(format!("no acknowledgement of an {kind} at {at:#x}"), e)
            }
            ChannelError::Closed(e) => of_io("reading its misses".into(), e),
            ChannelError::Refused(message, code) => BenchError::Refused {
                request: format!("{message:?}"),
                why: format!("code {code}"),
            },
            other => BenchError::WrongAnswer(other.to_string()),
        }
    }

    /// The meaning of a failed request.
    pub(crate) fn of_request(error: FrontEndError) -> Self {
        use vhost::{Error, vhost_user::Error as Protocol};
        let (request, protocol) = match error {
            FrontEndError::Request(request, Error::VhostUserProtocol(e)) => (request, e),
            FrontEndError::Silent { what, waited } => {
                let what = format!("no answer during {what}");
                return BenchError::Silent { what, waited };
            }
            FrontEndError::Lacks(features) => return BenchError::Lacks(names(features)),
            FrontEndError::Io(e) => return BenchError::Io(e),
            other => return BenchError::WrongAnswer(other.to_string()),
        };
        let why = protocol.to_string();
        match protocol {
            Protocol::Disconnected | Protocol::PartialMessage | Protocol::SocketBroken(_) => {
                let during = format!("it hung up when asked {request}");
                BenchError::Died { during }
            }
            Protocol::InactiveOperation(feature) => {
                BenchError::Lacks(format!("protocol feature {feature:?}"))
            }
            Protocol::BackendInternalError => BenchError::Refused {
                request: request.into(),
                why,
            },
            _ => BenchError::WrongAnswer(format!("{request}: {why}")),
        }
    }
}

fn names(features: u64) -> String {
    use ioatlas_vhost::runner::{ACCESS_PLATFORM, RING_PACKED, VERSION_1};
    let known = [
        (ACCESS_PLATFORM, "VIRTIO_F_ACCESS_PLATFORM (IOMMU support)"),
        (RING_PACKED, "VIRTIO_F_RING_PACKED"),
        (VERSION_1, "VIRTIO_F_VERSION_1"),
        (1 << 30, "VHOST_USER_F_PROTOCOL_FEATURES"),
    ];
    let found = known.iter().filter(|(bit, _)| features & bit != 0);
    let names: Vec<&str> = found.map(|(_, name)| *name).collect();
    match names.is_empty() {
        true => format!("features {features:#x}"),
        false => names.join(", "),
    }
}
