// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas vhost-net`: a network device for guests, behind a device IOTLB.
//!
//! The control thread of the runner is this one; one thread waits for signals, another tells how
//! things stand, on demand or where standard error is a terminal.

pub(crate) mod arguments;
mod log_lines;
mod statistics;

use crate::Answer;
use crate::error::Error;
use arguments::{Structure, VhostNetArguments};
use indicatif::{ProgressBar, ProgressStyle};
use ioatlas_vhost::runner::{
    End, Inherited, ListenError, Listener, Runner, RunnerError, Stale, StopHandle,
};
use ioatlas_vhost::{DeviceIotlb, IntervalIotlb, ListIotlb, RadixIotlb};
use ioatlas_vhost_net::{Net, NetError, TapError};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;
use statistics::Statistics;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often a waiting person is told how things stand.
const REFRESH: Duration = Duration::from_millis(500);

/// Why there is no back end, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum VhostNetError {
    /// The socket's path cannot be listened at.
    #[error(transparent)]
    Listen(ListenError),
    /// The same of a stale one, in the words of the command line.
    #[error("{0} with --replace")]
    Stale(ListenError),
    /// It was not said where front ends are.
    #[error("no socket: give --socket-path or --fd")]
    NoSocket,
    /// There is no such device.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The device cannot be run.
    #[error(transparent)]
    Runner(#[from] RunnerError),
    /// An error of the operating system's.
    #[error("{what}: {why}")]
    Io {
        /// What was to be done.
        what: &'static str,
        /// What the system says.
        #[source]
        why: io::Error,
    },
    /// The device IOTLB is not whole.
    #[error("the device IOTLB is damaged, which is a bug: {0}")]
    Audit(String),
}

impl VhostNetError {
    pub(crate) fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Net(NetError::Tap(TapError::Name(_))) | Self::NoSocket
        )
    }
}

impl From<ListenError> for VhostNetError {
    fn from(error: ListenError) -> Self {
        match error {
            ListenError::Stale(_) => Self::Stale(error),
            error => Self::Listen(error),
        }
    }
}

/// What `--print-capabilities` prints, by QEMU's `docs/interop/vhost-user.json`: of a network back
/// end it knows no features.
const CAPABILITIES: &str = "{\"type\": \"net\"}\n";

pub(crate) fn run(arguments: &VhostNetArguments) -> Answer {
    if arguments.print_capabilities {
        return String::from(CAPABILITIES).into();
    }
    let limits = arguments.limits();
    let served = match arguments.iotlb {
        Structure::Radix => serve(arguments, RadixIotlb::new(limits)),
        Structure::List => serve(arguments, ListIotlb::new(limits)),
        Structure::Interval => serve(arguments, IntervalIotlb::new(limits)),
    };
    let show = |statistics| Answer::show(&statistics, arguments.json, Statistics::plain);
    served.map(show).map_err(Error::from).into()
}

/// Where front ends come from.
enum Source<'a> {
    /// They connect to a socket of ours.
    Made(Listener),
    /// One listens at this path.
    Client(&'a Path),
    /// The socket that the program was started with.
    Inherited(Inherited),
}

impl<'a> Source<'a> {
    fn open(arguments: &'a VhostNetArguments) -> Result<Self, VhostNetError> {
        let stale = match arguments.replace {
            true => Stale::Replace,
            false => Stale::Refuse,
        };
        Ok(match (&arguments.socket_path, arguments.fd) {
            (_, Some(number)) => Self::Inherited(Inherited::take(number)?),
            (Some(path), None) if arguments.client => Self::Client(path),
            (Some(path), None) => Self::Made(Listener::bind_for(path, stale, arguments.access())?),
            (None, None) => return Err(VhostNetError::NoSocket),
        })
    }

    /// Serves them until the runner is stopped, or there can be no more.
    fn serve<T: DeviceIotlb>(&self, runner: &mut Runner<Net, T>) -> io::Result<()> {
        match self {
            Self::Made(listener) => {
                log::info!("{}: waiting for front ends", listener.path().display());
                runner.serve(listener.socket())
            }
            Self::Client(path) => runner.connect(path),
            Self::Inherited(Inherited::Listening(socket)) => runner.serve(socket),
            Self::Inherited(Inherited::Connected(socket)) => {
                match runner.serve_stream(socket.try_clone()?) {
                    End::Failed(why) => Err(io::Error::other(why)),
                    End::HungUp | End::Stopped | End::Broken(_) => Ok(()),
                }
            }
        }
    }
}

/// Serves front ends until a signal comes; returns what was done.
fn serve<T: DeviceIotlb>(
    arguments: &VhostNetArguments,
    cache: Arc<T>,
) -> Result<Statistics, VhostNetError> {
    let start = Instant::now();
    // Before there is anything to remove.
    let signals = Signals::new([SIGINT, SIGTERM]).map_err(failed("signals"))?;
    let bar = log_lines::begin();
    let net = Net::new(arguments.net())?;
    let mut runner = Runner::new(net, cache, arguments.runner())?;
    let source = Source::open(arguments)?;
    let signals = StopAtSignal::new(signals, runner.stop_handle())?;
    let (observer, device) = (runner.observer(), runner.shared_device());
    let shown = statistics::Shown::new(arguments, T::NAME);
    let statistics = move |of: &statistics::Shown| {
        let pairs = device.stats();
        Statistics::new(of, start.elapsed(), &observer.stats(), &pairs)
    };
    let every = arguments.stats_every;
    let every = every.map(|seconds| Duration::from_secs(seconds.into()));
    let progress = Progress::new(Tell::of(every, bar), {
        let (shown, statistics) = (shown.clone(), statistics.clone());
        move || statistics(&shown)
    })?;
    let served = source.serve(&mut runner);
    drop((source, signals, progress));
    served.map_err(failed("waiting for front ends"))?;
    let audit = runner.observer().audit();
    audit.map_err(VhostNetError::Audit)?;
    Ok(statistics(&shown))
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> VhostNetError {
    move |why| VhostNetError::Io { what, why }
}

/// Stops a runner at the first signal; the second ends the program as if it were not handled.
struct StopAtSignal {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl StopAtSignal {
    fn new(mut signals: Signals, stop: StopHandle) -> Result<Self, VhostNetError> {
        let handle = signals.handle();
        let body = move || {
            let mut signals = signals.forever();
            if signals.next().is_none() {
                return;
            }
            // A device may be slow to stop, and the second signal is not to wait for it.
            let stopping = thread::Builder::new().name("stop".into());
            let again = stop.clone();
            let stopping = stopping.spawn(move || stop.stop());
            if stopping.is_err() {
                again.stop();
            }
            if let Some(again) = signals.next() {
                // the two signals that we handle have a default
                let _ = emulate_default_handler(again);
            }
            if let Ok(stopping) = stopping {
                let _ = stopping.join();
            }
        };
        let thread = thread::Builder::new().name("signals".into()).spawn(body);
        Ok(StopAtSignal {
            handle,
            thread: Some(thread.map_err(failed("a thread for signals"))?),
        })
    }
}

impl Drop for StopAtSignal {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How it is told how things stand.
enum Tell {
    /// By lines of the log, so often.
    Lines(Duration),
    /// By a line that changes, on a terminal.
    Bar(ProgressBar),
    Nothing,
}

impl Tell {
    fn of(every: Option<Duration>, bar: Option<ProgressBar>) -> Self {
        match (every, bar) {
            (Some(every), _) => Self::Lines(every),
            (None, Some(bar)) => {
                if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                    bar.set_style(style);
                }
                Self::Bar(bar)
            }
            (None, None) => Self::Nothing,
        }
    }

    fn tell(&self, line: String) {
        match self {
            Self::Lines(_) => log::info!("{line}"),
            Self::Bar(bar) => {
                bar.set_message(line);
                bar.tick();
            }
            Self::Nothing => (),
        }
    }
}

/// The thread that tells how things stand.
struct Progress {
    ended: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    fn new(
        tell: Tell,
        now: impl Fn() -> Statistics + Send + 'static,
    ) -> Result<Self, VhostNetError> {
        let period = match &tell {
            Tell::Lines(every) => *every,
            Tell::Bar(_) => REFRESH,
            Tell::Nothing => {
                return Ok(Progress {
                    ended: None,
                    thread: None,
                });
            }
        };
        let (ended, end) = channel::<()>();
        let body = move || {
            let mut before = now();
            while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(period) {
                let after = now();
                tell.tell(after.since(&before));
                before = after;
            }
            if let Tell::Bar(bar) = tell {
                bar.finish_and_clear();
            }
        };
        let thread = thread::Builder::new().name("progress".into()).spawn(body);
        Ok(Progress {
            ended: Some(ended),
            thread: Some(thread.map_err(failed("a thread for progress"))?),
        })
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.ended = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
