// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A machine without hardware: a platform, a software unit in front of its memory, and the driver
//! that runs it.
//!
//! The in-process default where there is no IOMMU; and, watched, what tests and reports run on.

mod transfer;

pub use crate::{
    config::{Geometry, UnitConfig},
    fault::FaultReason,
    observe::{Access, Outcome},
    oracle::Oracle,
};
pub use transfer::{TransferError, TransferErrorReason};

use crate::{
    config::ConfigError,
    observe::Observer,
    oracle::{Bounds, Holders, Watched, WatchedPending, WatchedPlatform},
    unit::SoftUnit,
};
use ioatlas_dma::{
    design::Design,
    domain::{Colours, Domain, DomainError},
    invalidation::{Combining, CombiningConfig},
    platform::{PhysMemory, Platform},
    table::Format,
    translator::{Paged, PagedError, RemappingUnit},
    units::{AccessKind, Iova, SourceId},
};
use ioatlas_vtd::driver;
use std::sync::Arc;

/// The driver of a software unit.
pub type Driver<P> = driver::Unit<P, Arc<SoftUnit<P, P>>>;
/// A domain with tables in format `F` under a software unit.
pub type SoftDomain<P, F> = Domain<P, Paged<P, F, Arc<Driver<P>>>>;
/// The unit of a watched domain: the driver, behind one that combines requests where it is told to.
pub type WatchedUnit<B> = Combining<WatchedPlatform<B>, Arc<Driver<WatchedPlatform<B>>>>;
/// The tables of a watched domain. `B` is the platform underneath.
pub type WatchedTables<B, F> = Paged<WatchedPlatform<B>, F, WatchedUnit<B>>;
/// A domain that an oracle watches.
pub type WatchedDomain<B, F> = Watched<WatchedPlatform<B>, WatchedTables<B, F>>;
/// What its `unmap_start` returns.
pub type WatchedDomainPending<'w, B, F> =
    WatchedPending<'w, WatchedPlatform<B>, WatchedTables<B, F>>;

/// All requests go straight to the driver.
pub const NOT_COMBINED: CombiningConfig = CombiningConfig::DEFAULT.cpus_min(usize::MAX);

/// A platform, its software unit, brought up, and the driver.
pub struct Machine<P: Platform + PhysMemory<P>> {
    platform: Arc<P>,
    soft: Arc<SoftUnit<P, P>>,
    driver: Arc<Driver<P>>,
    colours: Arc<Colours<P>>,
}

/// Why there is no machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A number of the configuration does not fit.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The unit was not brought up.
    #[error(transparent)]
    BringUp(#[from] driver::BringUpError),
}

/// Why a machine has no domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SoftDomainError {
    /// It has no tables, or the unit does not walk them.
    #[error(transparent)]
    Tables(#[from] PagedError),
    /// The domain cannot be made over its tables.
    #[error(transparent)]
    Domain(#[from] DomainError),
}

impl<P: Platform + PhysMemory<P>> Machine<P> {
    /// Makes a unit, brings it up; no device is attached, so all are blocked.
    ///
    /// # Errors
    /// The configuration does not fit, or the unit does not come up ([`MachineError`]).
    pub fn new(platform: Arc<P>, config: &UnitConfig) -> Result<Self, MachineError> {
        let soft = SoftUnit::new(platform.clone(), config)?;
        Self::drive(platform, soft, driver::Config::default())
    }

    /// The same, with an observer of the unit, and with what the host decides about it.
    ///
    /// # Errors
    /// The configuration does not fit, or the unit does not come up ([`MachineError`]).
    pub fn observed(
        platform: Arc<P>,
        config: &UnitConfig,
        observer: Arc<dyn Observer>,
        host: driver::Config,
    ) -> Result<Self, MachineError> {
        let soft = SoftUnit::observed(platform.clone(), config, observer)?;
        Self::drive(platform, soft, host)
    }

    fn drive(
        platform: Arc<P>,
        soft: SoftUnit<P, P>,
        host: driver::Config,
    ) -> Result<Self, MachineError> {
        let soft = Arc::new(soft);
        let driver = driver::Unit::bring_up(platform.clone(), soft.clone(), host)?;
        Ok(Machine {
            platform,
            soft,
            driver: Arc::new(driver),
            colours: Arc::default(),
        })
    }

    /// A domain with tables in format `F`, whose geometry must be the unit's.
    ///
    /// # Errors
    /// [`SoftDomainError`]; [`PagedError::Shape`] where the unit does not walk such tables.
    pub fn domain<F: Format>(
        &self,
        design: impl Into<Design>,
    ) -> Result<SoftDomain<P, F>, SoftDomainError> {
        self.domain_of(self.driver.clone(), design)
    }

    /// The same, whose unit is `unit`: the driver, or what stands in front of it.
    fn domain_of<F: Format, U: RemappingUnit<P>>(
        &self,
        unit: U,
        design: impl Into<Design>,
    ) -> Result<Domain<P, Paged<P, F, U>>, SoftDomainError> {
        let Design { domain, tables } = design.into();
        let tables = Paged::new(&self.platform, unit, tables)?;
        let (platform, colours) = (self.platform.clone(), self.colours.clone());
        Ok(Domain::coloured(platform, tables, domain, colours)?)
    }

    /// One access by `device` to the page of `at`, through the unit: where it leads, or why it is
    /// blocked. No byte moves; [`dma_read`](Self::dma_read) and [`dma_write`](Self::dma_write) move
    /// some, where the platform can.
    pub fn access(&self, device: SourceId, at: Iova, kind: AccessKind) -> Access {
        self.soft.access(device, at.page(), kind)
    }
    /// The platform that unit and driver share.
    pub fn platform(&self) -> &Arc<P> {
        &self.platform
    }
    /// The unit, as devices meet it.
    pub fn unit(&self) -> &Arc<SoftUnit<P, P>> {
        &self.soft
    }
    /// The driver, as the CPU meets it.
    pub fn driver(&self) -> &Arc<Driver<P>> {
        &self.driver
    }

    /// Takes the unit out of use and gives its frames back. Every domain must have ended.
    ///
    /// # Errors
    /// What the driver says, or the machine itself where a domain is still alive.
    pub fn shut_down(self) -> Result<(), StillInUse<P>> {
        let Machine {
            platform,
            soft,
            driver,
            colours,
        } = self;
        match Arc::try_unwrap(driver) {
            Ok(driver) => {
                // SAFETY: the unit's devices are this machine's, which moves no bytes any more.
                #[allow(unsafe_code)]
                let ended = unsafe { driver.shut_down() };
                ended.map_err(|(e, _)| StillInUse::Driver(e))
            }
            Err(driver) => Err(StillInUse::Domains(Box::new(Machine {
                platform,
                soft,
                driver,
                colours,
            }))),
        }
    }
}

/// Why a machine was not shut down.
pub enum StillInUse<P: Platform + PhysMemory<P>> {
    /// Some domain is alive; here is the machine back.
    Domains(Box<Machine<P>>),
    /// What the driver says against it.
    Driver(driver::ShutDownError),
}

impl<P: Platform + PhysMemory<P>> std::fmt::Debug for StillInUse<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StillInUse::Domains(_) => write!(f, "a domain is still alive"),
            StillInUse::Driver(error) => write!(f, "{error}"),
        }
    }
}

/// A machine with an oracle that watches platform, unit and domains.
pub struct WatchedMachine<B: Platform + PhysMemory<B>> {
    machine: Machine<WatchedPlatform<B>>,
    oracle: Arc<Oracle>,
}

impl<B: Platform + PhysMemory<B>> WatchedMachine<B> {
    /// A machine on `base`, watched by `oracle`.
    ///
    /// # Errors
    /// The configuration does not fit, or the unit does not come up ([`MachineError`]).
    pub fn new(
        base: B,
        config: &UnitConfig,
        oracle: Arc<Oracle>,
        host: driver::Config,
    ) -> Result<Self, MachineError> {
        let platform = Arc::new(WatchedPlatform::new(base, oracle.clone()));
        let machine = Machine::observed(platform, config, oracle.clone(), host)?;
        let unit = Arc::downgrade(machine.unit()); // the unit holds the platform
        machine.platform().ask(move |frame| {
            let unit = unit.upgrade();
            unit.map_or_else(Holders::default, |unit| Holders {
                pointer: unit.holds_pointer_to(frame),
                leaves: unit.leaves_to(frame),
            })
        });
        Ok(WatchedMachine { machine, oracle })
    }

    /// A watched domain. What the oracle allows it is what its policy promises ([`Bounds::of`]).
    /// Where that is a time, it goes by the ticks that the watch is told of ([`Watched::tick`]).
    ///
    /// # Errors
    /// There are no tables, or no domain over them ([`SoftDomainError`]).
    pub fn domain<F: Format>(
        &self,
        design: impl Into<Design>,
    ) -> Result<WatchedDomain<B, F>, SoftDomainError> {
        self.combining(design, NOT_COMBINED)
    }

    /// A watched domain whose requests to the unit are combined.
    ///
    /// # Errors
    /// Those of [`domain`](Self::domain).
    pub fn combining<F: Format>(
        &self,
        design: impl Into<Design>,
        config: CombiningConfig,
    ) -> Result<WatchedDomain<B, F>, SoftDomainError> {
        let design = design.into();
        let cpus = self.machine.platform().cpus();
        let bounds = Bounds::of(&design.domain.policy, cpus);
        let domain = self.unwatched::<F>(design, config)?;
        Ok(Watched::new(domain, self.oracle.clone(), bounds))
    }

    /// A domain such as those are, with nothing that watches it yet.
    ///
    /// # Errors
    /// Those of [`domain`](Self::domain).
    pub fn unwatched<F: Format>(
        &self,
        design: impl Into<Design>,
        config: CombiningConfig,
    ) -> Result<Domain<WatchedPlatform<B>, WatchedTables<B, F>>, SoftDomainError> {
        let (platform, driver) = (self.machine.platform(), self.machine.driver());
        let unit = Combining::new(platform.clone(), driver.clone(), config);
        self.machine.domain_of(unit, design)
    }

    /// The machine that is watched.
    pub fn machine(&self) -> &Machine<WatchedPlatform<B>> {
        &self.machine
    }
    /// The oracle that watches it.
    pub fn oracle(&self) -> &Arc<Oracle> {
        &self.oracle
    }
    /// The machine alone, to shut it down.
    pub fn into_machine(self) -> Machine<WatchedPlatform<B>> {
        self.machine
    }
}
