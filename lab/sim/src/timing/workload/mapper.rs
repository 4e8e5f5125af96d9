// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What gives devices access to buffers: nothing, or a domain.

use super::{Driver, WorkloadError};
use crate::{platform::Sim, timing::Machine};
use ioatlas_dma::{
    design::Design,
    domain::{Chunk, Domain, MapError, Mapping},
    invalidation::{Combining, CombiningConfig},
    table::fmt::VtdSecond48,
    translator::{Paged, RemappingUnit, Translator},
    units::{Direction, PageCount, PhysRange, TimeNs},
};
use ioatlas_vtd::driver::Config;
use std::sync::Arc;

/// How requests of CPUs reach the unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Requests {
    /// Each by itself.
    #[default]
    Direct,
    /// Those that come while the unit is at work, as one: see [`Combining`].
    Combined(CombiningConfig),
}

/// A domain on the machine's unit, whatever stands between the two.
pub(super) trait Maps {
    fn map(&self, buffer: PhysRange, direction: Direction) -> Result<Mapping, MapError>;
    fn map_list(&self, list: &[PhysRange], direction: Direction) -> Result<Mapping, MapError>;
    fn chunk(&self, pages: PageCount) -> Result<Box<dyn MapsInOrder + '_>, MapError>;
    fn unmap(&self, mapping: Mapping);
    fn unmap_batch(&self, mappings: &mut dyn Iterator<Item = Mapping>);
    fn tick(&self, now: TimeNs);
    fn reclaim_tables(&self);
}

/// A chunk of such a domain.
pub(super) trait MapsInOrder {
    fn map(&mut self, buffer: PhysRange, direction: Direction) -> Result<Mapping, MapError>;
}

impl<T: Translator<Sim>> Maps for Domain<Sim, T> {
    fn map(&self, buffer: PhysRange, direction: Direction) -> Result<Mapping, MapError> {
        self.map(buffer, direction)
    }
    fn map_list(&self, list: &[PhysRange], direction: Direction) -> Result<Mapping, MapError> {
        self.map_list(list, direction)
    }
    fn chunk(&self, pages: PageCount) -> Result<Box<dyn MapsInOrder + '_>, MapError> {
        Ok(Box::new(self.chunk(pages)?))
    }
    fn unmap(&self, mapping: Mapping) {
        self.unmap(mapping).expect("the simulated unit answers");
    }
    fn unmap_batch(&self, mut mappings: &mut dyn Iterator<Item = Mapping>) {
        let ended = self.unmap_batch(&mut mappings);
        ended.expect("the simulated unit answers");
    }
    fn tick(&self, now: TimeNs) {
        self.tick(now).expect("the simulated unit answers");
    }
    fn reclaim_tables(&self) {
        self.reclaim_tables().expect("the simulated unit answers");
    }
}

impl<T: Translator<Sim>> MapsInOrder for Chunk<'_, Sim, T> {
    fn map(&mut self, buffer: PhysRange, direction: Direction) -> Result<Mapping, MapError> {
        self.map(buffer, direction)
    }
}

pub(super) enum Mapper {
    /// Devices use physical addresses.
    Physical,
    /// The core's own code.
    Domain(Box<dyn Maps>),
}

impl Mapper {
    /// A domain of `design` on `machine`, whose unit is not up yet.
    pub fn domain(
        machine: &Machine,
        design: Design,
        driver: &Driver,
    ) -> Result<Self, WorkloadError> {
        let unit = machine.bring_up_as(Config::default().costs(driver.costs))?;
        let platform = machine.platform();
        Ok(Mapper::Domain(match driver.requests {
            Requests::Direct => on_unit(platform, design, unit)?,
            Requests::Combined(config) => {
                let unit = Combining::new(platform.clone(), unit, config);
                on_unit(platform, design, unit)?
            }
        }))
    }
    pub fn map(
        &self,
        buffer: PhysRange,
        direction: Direction,
    ) -> Result<Option<Mapping>, MapError> {
        match self {
            Mapper::Physical => Ok(None),
            Mapper::Domain(domain) => domain.map(buffer, direction).map(Some),
        }
    }
    pub fn map_list(
        &self,
        list: &[PhysRange],
        direction: Direction,
    ) -> Result<Option<Mapping>, MapError> {
        match self {
            Mapper::Physical => Ok(None),
            Mapper::Domain(domain) => domain.map_list(list, direction).map(Some),
        }
    }
    /// None where devices use physical addresses.
    pub fn chunk(&self, pages: PageCount) -> Result<Option<Box<dyn MapsInOrder + '_>>, MapError> {
        match self {
            Mapper::Physical => Ok(None),
            Mapper::Domain(domain) => domain.chunk(pages).map(Some),
        }
    }
    pub fn unmap(&self, mapping: Mapping) {
        if let Mapper::Domain(domain) = self {
            domain.unmap(mapping);
        }
    }
    /// All by one call.
    pub fn unmap_batch(&self, mappings: &mut impl Iterator<Item = Mapping>) {
        if let Mapper::Domain(domain) = self {
            domain.unmap_batch(mappings);
        }
    }
    /// What the host's timer does.
    pub fn tick(&self, now: TimeNs) {
        if let Mapper::Domain(domain) = self {
            domain.tick(now);
        }
    }
    /// What a tick does of that, where the design says so.
    pub fn reclaim_tables(&self) {
        if let Mapper::Domain(domain) = self {
            domain.reclaim_tables();
        }
    }
}

fn on_unit<U: RemappingUnit<Sim> + 'static>(
    platform: &Arc<Sim>,
    design: Design,
    unit: U,
) -> Result<Box<dyn Maps>, WorkloadError> {
    let tables = Paged::<Sim, VtdSecond48, U>::new(platform, unit, design.tables);
    let tables = tables.map_err(|e| WorkloadError::Domain(e.to_string()))?;
    let domain = Domain::new(platform.clone(), tables, design.domain);
    let domain = domain.map_err(|e| WorkloadError::Domain(e.to_string()))?;
    Ok(Box::new(domain))
}
