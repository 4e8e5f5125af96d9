// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Back ends in the test's own process.

use ioatlas_vhost::{
    Limits, RadixIotlb,
    guest_memory::Patience,
    runner::{self, Device, Runner, StopHandle},
};
use ioatlas_vhost_bench::*;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long is waited for what must come. No test depends on how soon it does. Frames that are out
/// at the end are given up after its twentieth.
pub const SOON: Duration = Duration::from_secs(300);

/// Drives `device` with `drive`, which gets a stream to it.
pub fn with_device<D: Device, T>(
    device: D,
    started: impl FnOnce(StopHandle),
    drive: impl FnOnce(UnixStream) -> T,
) -> T {
    let limits = Limits::default().runs(1 << 16).readers(1).pins(64);
    let config = runner::Config::default().patience(Patience { answer: SOON });
    let mut runner = Runner::new(device, RadixIotlb::new(limits), config).unwrap();
    started(runner.stop_handle());
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || runner.serve_stream(theirs));
        drive(ours)
    })
}

/// Few frames, and all the time that they need.
pub fn config() -> Config {
    Config::default().patience(SOON).warm_up(Length::Frames(32))
}

pub fn run(stream: UnixStream, config: Config, frames: u64) -> Result<Report, BenchError> {
    let mut bench = Bench::over(stream, config)?;
    let report = bench.run(Length::Frames(frames), Pace::Full)?;
    bench.stop()?;
    Ok(report)
}
