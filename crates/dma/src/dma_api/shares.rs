// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Shares of one fixed budget: what the devices of a confidential VM have of the memory that it
//! shares with its host.
//!
//! The memory is mapped once, both ways, and nothing is mapped or unmapped afterwards
//! ([`Growth::Fixed`]). Each client has a minimum that no other client can take, and borrows from
//! what is left when that is all in use. So one that is busy takes at most its own and the rest;
//! the minimum of another, used or not, stays that one's. All of it together is never more than the
//! budget. A share stays with its client until the [`Dma`] ends.

use super::*;
use crate::{iova::Limits, units::GRANULE_LG2};

/// How large a budget is, and what of it any client may borrow.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SharesConfig {
    /// All memory of slots, those of shares and those of the rest.
    pub budget: ByteCount,
    /// Slots that any client may borrow, smallest first.
    pub rest: Vec<ClassConfig>,
    /// Which addresses they have: every client must reach them.
    pub limits: Limits,
}

impl SharesConfig {
    /// That budget, of which any client may borrow the slots `rest`, at whatever addresses.
    pub fn new(budget: ByteCount, rest: Vec<ClassConfig>) -> Self {
        SharesConfig {
            budget,
            rest,
            limits: Limits::NONE,
        }
    }
}

setters!(SharesConfig { limits: Limits });

/// One budget, and the slots that its clients borrow.
pub struct Shares<P: CopyMemory, T: Translator<P>, D = Off> {
    rest: Arc<Pool<P>>,
    limits: Limits,
    /// What is not given out yet, in bytes.
    left: P::Lock<u64>,
    /// The last field, as it may end the pools.
    dma: Arc<Dma<P, T, D>>,
}

fn fixed(classes: Vec<ClassConfig>) -> PoolConfig {
    PoolConfig {
        classes,
        growth: Growth::Fixed,
        ..PoolConfig::default()
    }
}

/// Memory of all slots.
fn bytes(pool: &PoolConfig) -> Result<u64, PoolError> {
    pool.check()?; // bounds what is multiplied
    let of = |class: &ClassConfig| u64::from(class.slots) * (class.pages().0 << GRANULE_LG2);
    Ok(pool.classes.iter().map(of).sum())
}

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Dma<P, T, D> {
    /// A budget to be shared. What is to be borrowed is mapped now.
    ///
    /// # Errors
    /// [`PoolError`], if what is to be borrowed exceeds the budget, or its pool cannot be made.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn shares(self: &Arc<Self>, config: SharesConfig) -> Result<Shares<P, T, D>, PoolError> {
        let pool = fixed(config.rest);
        let left = P::Lock::new(config.budget.0);
        take::<P>(&left, bytes(&pool)?)?;
        let limits = config.limits;
        Ok(Shares {
            rest: self.pools.ones(&self.domain, &pool, limits, None)?,
            limits,
            left,
            dma: self.clone(),
        })
    }
}

fn take<P: Platform>(left: &P::Lock<u64>, wanted: u64) -> Result<(), PoolError> {
    left.with(|left| match left.checked_sub(wanted) {
        Some(rest) => {
            *left = rest;
            Ok(())
        }
        None => Err(PoolError::Budget {
            wanted: ByteCount(wanted),
            left: ByteCount(*left),
        }),
    })
}

impl<P: CopyMemory, T: Translator<P>, D: Watch<P>> Shares<P, T, D> {
    /// Lets a device map, with at least `minimum` for itself, which is mapped now.
    ///
    /// # Errors
    /// [`PoolError`]: most likely the budget does not have it. The device's limits must be
    /// those of the budget.
    pub fn client(
        &self,
        config: ClientConfig,
        minimum: Vec<ClassConfig>,
    ) -> Result<Client<P, T, D>, PoolError> {
        if config.limits.end != self.limits.end {
            return Err(PoolError::Limits);
        }
        self.dma.check(&config)?;
        let pool = fixed(minimum);
        let wanted = bytes(&pool)?;
        take::<P>(&self.left, wanted)?;
        let rest = Some(self.rest.clone());
        let made = self
            .dma
            .pools
            .ones(&self.dma.domain, &pool, config.limits, rest);
        let made = made.inspect_err(|_| self.left.with(|left| *left += wanted))?;
        Ok(Client::new(self.dma.clone(), config, Some(made)))
    }
}
