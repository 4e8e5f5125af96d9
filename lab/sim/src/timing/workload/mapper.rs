// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What gives devices access to buffers: nothing, or a domain.

use super::WorkloadError;
use crate::{
    platform::Sim,
    timing::{Machine, MachineUnit},
};
use ioatlas_dma::{
    design::Design,
    domain::{Domain, MapError, Mapping},
    table::fmt::VtdSecond48,
    translator::Paged,
    units::{Direction, PhysRange, TimeNs},
};
use ioatlas_vtd::{driver::Config, plan::InvalidationCosts};
use std::sync::Arc;

type Real = Domain<Sim, Paged<Sim, VtdSecond48, Arc<MachineUnit>>>;

pub(super) enum Mapper {
    /// Devices use physical addresses.
    Physical,
    /// The core's own code.
    Domain(Box<Real>),
}

impl Mapper {
    /// A domain of `design` on `machine`, whose unit is not up yet.
    pub fn domain(
        machine: &Machine,
        design: Design,
        costs: InvalidationCosts,
    ) -> Result<Self, WorkloadError> {
        let unit = machine.bring_up_as(Config {
            costs,
            ..Config::default()
        })?;
        let platform = machine.platform().clone();
        let tables = Paged::new(&*platform, unit, design.tables);
        let tables = tables.map_err(|e| WorkloadError::Domain(e.to_string()))?;
        let domain = Domain::new(platform, tables, design.domain);
        let domain = domain.map_err(|e| WorkloadError::Domain(e.to_string()))?;
        Ok(Mapper::Domain(Box::new(domain)))
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
    pub fn unmap(&self, mapping: Mapping) {
        if let Mapper::Domain(domain) = self {
            domain.unmap(mapping).expect("the simulated unit answers");
        }
    }
    /// All by one call.
    pub fn unmap_batch(&self, mappings: &mut impl Iterator<Item = Mapping>) {
        if let Mapper::Domain(domain) = self {
            let ended = domain.unmap_batch(mappings);
            ended.expect("the simulated unit answers");
        }
    }
    /// What the host's timer does.
    pub fn tick(&self, now: TimeNs) {
        if let Mapper::Domain(domain) = self {
            domain.tick(now).expect("the simulated unit answers");
        }
    }
}
