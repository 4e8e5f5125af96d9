// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A driver in front of the fake unit.

use super::*;
use ioatlas_dma::invalidation::WaitLimit;
use ioatlas_dma::units::*;
use ioatlas_vtd::driver::{BringUpError, Config, Unit};

pub const LIMIT: WaitLimit = WaitLimit(50);
pub const CONFIG: Config = Config::DEFAULT.limit(LIMIT);
/// 00:04.0 and 00:05.0 share a bus; 02:00.0 is alone on another.
pub const NIC: SourceId = SourceId(0x0020);
pub const DISK: SourceId = SourceId(0x0028);
pub const FAR: SourceId = SourceId(0x0200);
pub const ROOT: PhysPage = PhysPage(0x1234);

pub type Driver = Unit<Memory, Arc<Fake>>;

pub fn bring_up(host: &Arc<Memory>, fake: &Arc<Fake>) -> Result<Driver, BringUpError> {
    Unit::bring_up(host.clone(), fake.clone(), CONFIG)
}

/// Brought up after `change`, with nothing logged yet.
pub fn up_with(change: impl FnOnce(&mut State)) -> (Arc<Memory>, Arc<Fake>, Driver) {
    let host = host(16);
    let fake = Fake::new(&host);
    change(&mut fake.state());
    let unit = bring_up(&host, &fake).unwrap();
    fake.taken();
    fake.log();
    (host, fake, unit)
}
