// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How long deferred policies really leave pages exposed.

use crate::{Failure, platform::host};
use ioatlas_dma::{
    design::Design,
    domain::Exposure,
    table::fmt::VtdSecond48,
    units::{ByteCount, Direction, GRANULE, PhysPage, PhysRange, SourceId, TimeNs},
};
use ioatlas_viommu::{
    config::{Geometry, UnitConfig},
    machine::WatchedMachine,
    oracle::Oracle,
};
use ioatlas_vtd::driver;
use std::time::{Duration, Instant};

/// Bursts of unmaps, each followed by silence longer than any window.
const BURSTS: u32 = 8;
/// Unmaps of a burst: below the batch, so that only the timer flushes.
const BURST: usize = 100;
/// The timer's interval.
const TICK: Duration = Duration::from_millis(1);

/// Silence after a burst where a policy names no window.
const UNTIMED: TimeNs = TimeNs(10_000_000);

/// The longest that an unmapped page stayed unflushed, in ms, by the oracle's clock: bursts that do not fill a batch, a timer
/// that ticks every millisecond. `None` under policies without a window.
///
/// # Errors
/// The design failed where it must not.
pub fn exposure_ms(design: Design) -> Result<Option<f64>, Failure> {
    let Exposure::Bounded { time, .. } = design.domain.policy.exposure(1) else {
        return Ok(None);
    };
    let window = time.unwrap_or(UNTIMED);
    let start = Instant::now();
    let now = move || TimeNs(start.elapsed().as_nanos() as u64);
    let machine = WatchedMachine::new(
        host(4096, 1)?,
        &UnitConfig::new(Geometry::of::<VtdSecond48>()),
        Oracle::with_clock(now),
        driver::Config::default(),
    );
    let machine = machine.map_err(Failure::new)?;
    let domain = machine
        .domain::<VtdSecond48>(design)
        .map_err(Failure::new)?;
    domain.attach(SourceId(0)).map_err(Failure::new)?;
    let page = PhysRange::new(PhysPage(1).addr(), ByteCount(GRANULE));
    for _ in 0..BURSTS {
        for _ in 0..BURST {
            let mapping = domain
                .map(page, Direction::ToDevice)
                .map_err(Failure::new)?;
            domain.unmap(mapping).map_err(Failure::new)?;
        }
        let until = now().0 + window.0 + window.0 / 2;
        while now().0 < until {
            std::thread::sleep(TICK);
            domain.tick(now()).map_err(Failure::new)?;
        }
    }
    let summary = machine.oracle().summary();
    if let Some(first) = summary.violations.first() {
        let count = summary.violation_count;
        let why = format!("{:?}: {} (one of {count})", first.property, first.text);
        return Err(Failure::new(why));
    }
    Ok(Some(summary.exposure.time.0 as f64 / 1e6))
}
