// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Under the software unit: a strict domain, and an invalidation alone.

use crate::{
    Failure, Subject,
    platform::Slots,
    subjects::{Late, Whole},
};
use ioatlas_dma::{
    design::Design,
    domain::Domain,
    invalidation::{FlushSequence, Scope, WaitLimit},
    platform::{Authority, PhysMemory},
    table::Format,
    translator::{Paged, RemappingUnit},
    units::{DomainId, IovaPage, IovaRange, PageCount},
};
use ioatlas_viommu::{
    config::{Geometry, UnitConfig},
    machine::{Driver, Machine},
};
use std::{sync::Arc, time::Duration};

/// A whole domain under a software unit.
pub type UnderSoftware<P, F> = Whole<P, Paged<P, F, Arc<Driver<P>>>>;

/// The same under a unit that answers late.
pub type UnderLate<P, F> = Whole<P, Paged<P, F, Arc<Late<P, Arc<Driver<P>>>>>>;

/// A machine with a software unit.
pub struct Software<P: Slots + PhysMemory<P>>(Machine<P>);

impl<P: Slots + PhysMemory<P>> Software<P> {
    /// Whose tables have format `F`.
    ///
    /// # Errors
    /// The unit was not brought up.
    pub fn new<F: Format>(platform: Arc<P>) -> Result<Self, Failure> {
        let config = UnitConfig::new(Geometry::of::<F>());
        let machine = Machine::new(platform, &config).map_err(Failure::new)?;
        Ok(Software(machine))
    }
    /// A domain of it.
    ///
    /// # Errors
    /// The design cannot work there.
    pub fn domain<F: Format>(&self, design: Design) -> Result<UnderSoftware<P, F>, Failure> {
        self.0.domain::<F>(design).map(Whole).map_err(Failure::new)
    }
    /// A domain of it whose invalidations are answered after `latency`, one after the other.
    ///
    /// # Errors
    /// The design cannot work there.
    pub fn late<F: Format>(
        &self,
        design: Design,
        latency: Duration,
    ) -> Result<UnderLate<P, F>, Failure> {
        let platform = self.0.platform().clone();
        let unit = Arc::new(Late::new(self.0.driver().clone(), latency));
        let tables = Paged::new(&platform, unit, design.tables).map_err(Failure::new)?;
        let domain = Domain::new(platform, tables, design.domain).map_err(Failure::new)?;
        Ok(Whole(domain))
    }
    /// One invalidation after the other, with nothing between.
    ///
    /// # Errors
    /// The unit has no domain id left.
    pub fn invalidation(&self) -> Result<Invalidation<P>, Failure> {
        let (platform, driver) = (self.0.platform().clone(), self.0.driver().clone());
        let id = driver.domain_id(&*platform);
        // SAFETY: nothing is ever retired: what is measured is the unit.
        #[allow(unsafe_code)]
        let sequence = unsafe { FlushSequence::new(&*platform) };
        Ok(Invalidation {
            sequence,
            id: id.ok_or_else(|| Failure::new("the unit has no domain id left"))?,
            platform,
            driver,
        })
    }
}

/// The unit's latency: pairs are nothing, and one invalidation of a range that is waited for.
pub struct Invalidation<P: Slots + PhysMemory<P>> {
    platform: Arc<P>,
    driver: Arc<Driver<P>>,
    sequence: FlushSequence<P>,
    id: DomainId,
}

impl<P: Slots + PhysMemory<P>> Drop for Invalidation<P> {
    fn drop(&mut self) {
        // SAFETY: nothing was ever cached for it.
        #[allow(unsafe_code)]
        let by = unsafe { Authority::assume() };
        self.driver.release_domain_id(by, &self.platform, self.id);
    }
}

impl<P: Slots + PhysMemory<P>> Subject for Invalidation<P> {
    type Token = IovaRange;
    /// The page that comes next.
    type Hand = u64;

    fn hand(&self, _: usize) -> u64 {
        self.platform.enter();
        0
    }
    #[inline]
    fn take(&self, next: &mut u64, pages: PageCount) -> Result<IovaRange, Failure> {
        *next = (*next + pages.0.next_power_of_two()) % (1 << 20);
        let first = *next & !(pages.0.next_power_of_two() - 1);
        Ok(IovaRange::new(IovaPage(first), pages))
    }
    #[inline]
    fn give(&self, _: &mut u64, range: IovaRange) -> Result<(), Failure> {
        let (scope, limit) = (Scope::leaves(range), WaitLimit::default());
        let (p, driver) = (&*self.platform, &*self.driver);
        let flushed = self.sequence.flush(p, driver, self.id, scope, limit);
        match flushed {
            Ok(_) => Ok(()),
            Err(failed) => Err(Failure::new(failed.cause)),
        }
    }
}
