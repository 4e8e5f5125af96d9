// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the design that costs least on many CPUs comes to there, beside the baseline of ATC'15: one line, from `ioatlas scale`.
//!
//! Two designs and no IOMMU, request-response on 16 simulated CPUs, as `scale` measures them; well below a second. It does not depend on traces.

use super::figure::{Figure, Sentence, Unit, sentence};
use crate::error::Error;
use crate::scale::{self, named};
use serde::Serialize;
use std::sync::OnceLock;

/// How two designs do on many CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scaling {
    /// How many.
    pub cpus: Figure,
    /// Throughput under `magazine,deferred-percpu`, of that without an IOMMU.
    pub magazine: Figure,
    /// The same under `eiovar,deferred-global`, one lock each for IOVAs and invalidation.
    pub eiovar: Figure,
}

impl Scaling {
    /// Simulates them, once in a process: it depends on nothing.
    ///
    /// # Errors
    /// [`Error::Simulation`].
    pub fn simulate() -> Result<Self, Error> {
        static SIMULATED: OnceLock<Scaling> = OnceLock::new();
        if let Some(simulated) = SIMULATED.get() {
            return Ok(*simulated);
        }
        let [magazine, ..] = named::OURS;
        let [magazine, eiovar] = scale::glance([magazine, named::EIOVAR])?;
        let percent = |part: f64| Figure::simulated(100.0 * part, Unit::Percent);
        let simulated = Scaling {
            cpus: Figure::assumed(scale::GLANCE_CPUS as f64, Unit::Count),
            magazine: percent(magazine),
            eiovar: percent(eiovar),
        };
        Ok(*SIMULATED.get_or_init(|| simulated))
    }

    /// In words.
    #[must_use]
    pub fn sentence(&self) -> Sentence {
        sentence![
            "Small packets on ",
            self.cpus,
            " CPUs (simulated, see scale): magazines ",
            self.magazine,
            " of no IOMMU, one lock ",
            self.eiovar,
            ".",
        ]
    }
}
