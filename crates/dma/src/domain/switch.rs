// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The mode of a domain, and what is exposed now. Why a switch leaves no hole is in
//! `crate::policy::switch`.

use super::*;

impl<P: Platform, T: Translator<P>> Domain<P, T> {
    /// Switches a domain of a deferred policy to strict, or back, while it runs: for the time in
    /// which a device is not trusted, say, or in which it has to be fast.
    ///
    /// To strict: what is deferred is flushed and freed before this returns, and every unmap that
    /// returns after it has flushed what it unmapped, also one that had begun before (P1); until
    /// the next call of this, by whomever, that switches to deferred. Where several calls are under
    /// way at once, the last one that comes to it decides. A domain that is strict already flushes
    /// once more.
    ///
    /// Costs one invalidation of the domain, and nothing in either mode: while a domain is deferred
    /// its unmaps are what they were; while it is strict an unmap looks at its queue in vain, and
    /// then is that of a domain made strict. So are batches, [`unmap_start`](Self::unmap_start),
    /// and what unmaps by address.
    ///
    /// May be called in an interrupt handler, on any CPU. Nothing is allocated.
    ///
    /// # Errors
    /// [`SwitchError`]. After a failed invalidation unmaps are strict; see there for what was
    /// deferred.
    ///
    /// ```
    /// # use ioatlas_dma::{domain::*, platform::*, translator::{Paged, Uncached}, units::*};
    /// # use ioatlas_dma::translator::{TableConfig, VtdSecond48};
    /// # use ioatlas_host::*;
    /// # use std::sync::Arc;
    /// # let p = Arc::new(Host::new(HostConfig::default().frames(64)));
    /// # let table = Paged::<_, VtdSecond48, _>::new(&p, Uncached::<Host>::new(), TableConfig::default())?;
    /// # let policy = PolicyConfig::DeferredPerCpu(DeferredConfig::default());
    /// # let config = DomainConfig::default().policy(policy);
    /// let domain = Domain::new(p.clone(), table, config)?; // deferred
    /// let buffer = PhysRange::page(PhysPage(0x100));
    /// domain.unmap(domain.map(buffer, Direction::FromDevice)?)?;
    /// assert_eq!(domain.stats().retired.pages, PageCount(1));
    ///
    /// domain.set_mode(InvalidationMode::Strict)?; // a guest gets the device
    /// assert_eq!(domain.stats().retired.pages, PageCount(0));
    /// assert_eq!(domain.exposure(), Exposure::None);
    /// domain.unmap(domain.map(buffer, Direction::FromDevice)?)?;
    /// // no device reaches the buffer now
    ///
    /// domain.set_mode(InvalidationMode::Deferred)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_mode(&self, mode: InvalidationMode) -> Result<(), SwitchError> {
        let Policy::Deferred(queues) = &self.policy else {
            let policy = self.configured.name();
            return Err(SwitchError::OneMode { policy });
        };
        let switched = queues.set_mode(&self.engine(), mode);
        Ok(switched.map_err(|failed| failed.cause)?)
    }

    /// In which mode unmaps are that are called now; `None` where the policy has no modes. In a
    /// switch, and after one that failed, more may be [exposed](Self::exposure) than they leave.
    pub fn mode(&self) -> Option<InvalidationMode> {
        match &self.policy {
            Policy::Deferred(queues) => Some(queues.mode()),
            _ => None,
        }
    }

    /// The policy that the domain was made with, whatever its mode is.
    pub fn policy(&self) -> PolicyConfig {
        self.configured
    }

    /// How long a device may now reach what was unmapped: as the [policy](Self::policy) says, and
    /// not at all from when the domain has been switched to strict and all is drained.
    pub fn exposure(&self) -> Exposure {
        match self.policy.exposes() {
            true => self.configured.exposure(self.platform.cpus()),
            false => Exposure::None,
        }
    }
}
