// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The pools of one [`Dma`](super::Dma): one for each address limit that its clients have, and
//! those that are one client's own.

use crate::{
    bounce::{Pool, PoolConfig, PoolError},
    domain::Domain,
    iova::Limits,
    platform::{
        room::{Larger, NoMemory, with_room},
        *,
    },
    translator::Translator,
};
use alloc::{sync::Arc, vec::Vec};

/// Which clients a pool serves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// Every client with its address limits.
    Anyones,
    /// Only what it was made for.
    Ones,
}

/// Pools are added, and stay until the end.
pub(super) struct Pools<P: Platform>(P::Lock<Vec<Entry<P>>>);

type Entry<P> = (Whose, Arc<Pool<P>>);

/// Of a client's limits, those that its pool's region has to keep; slots keep the others,
/// or are passed over.
fn region_limits(limits: Limits) -> Limits {
    Limits {
        align_lg2: 0,
        boundary_lg2: None,
        ..limits
    }
}

impl<P: CopyMemory> Pools<P> {
    pub fn new() -> Self {
        Pools(Lock::new(Vec::new()))
    }

    /// That of these limits, which may have to be made.
    pub fn anyones<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        config: &PoolConfig,
        limits: Limits,
    ) -> Result<Arc<Pool<P>>, PoolError> {
        let limits = region_limits(limits);
        if let Some(pool) = self.0.with(|pools| find(pools, limits)) {
            return Ok(pool);
        }
        let made = Pool::new(domain, config, limits, None)?;
        self.keep(domain, Whose::Anyones, made)
    }

    /// One more; with what `rest` has beside its own.
    pub fn ones<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        config: &PoolConfig,
        limits: Limits,
        rest: Option<Arc<Pool<P>>>,
    ) -> Result<Arc<Pool<P>>, PoolError> {
        let made = Pool::new(domain, config, region_limits(limits), rest)?;
        self.keep(domain, Whose::Ones, made)
    }

    /// Keeps `made`, unless there is one already that serves, or no memory to note it: it is closed
    /// then.
    fn keep<T: Translator<P>>(
        &self,
        domain: &Domain<P, T>,
        whose: Whose,
        made: Pool<P>,
    ) -> Result<Arc<Pool<P>>, PoolError> {
        let made = Arc::new(made);
        let kept = with_room(
            &self.0,
            |pools| pools,
            |pools| {
                if whose == Whose::Anyones
                    && let Some(pool) = find(pools, made.limits)
                {
                    return Ok(pool); // another thread was faster
                }
                match Larger::of(pools, pools.len() + 1) {
                    Some(larger) => Err(larger),
                    None => {
                        pools.push((whose, made.clone()));
                        Ok(made.clone())
                    }
                }
            },
        );
        if let Some(made) = Arc::into_inner(made) {
            made.close(domain);
        }
        kept.map_err(|NoMemory| PoolError::NoMemory)
    }

    /// Shows each pool, with no lock held.
    pub fn each(&self, mut each: impl FnMut(&Pool<P>)) {
        let at = |nth: usize| {
            self.0
                .with(|pools| pools.get(nth).map(|(_, pool)| pool.clone()))
        };
        let mut nth = 0;
        while let Some(pool) = at(nth) {
            each(&pool);
            nth += 1;
        }
    }

    /// Ends all pools, the latest first.
    pub fn close<T: Translator<P>>(&self, domain: &Domain<P, T>) {
        let pools = self.0.with(core::mem::take);
        // the latest first: it may borrow from one before
        let pools = pools.into_iter().rev().map(|(_, pool)| pool);
        // clients hold their `Dma`, so none of them holds a pool any more
        pools
            .filter_map(Arc::into_inner)
            .for_each(|pool| pool.close(domain));
    }
}

fn find<P: Platform>(pools: &[Entry<P>], limits: Limits) -> Option<Arc<Pool<P>>> {
    let serves = |(whose, pool): &&Entry<P>| *whose == Whose::Anyones && pool.limits == limits;
    pools.iter().find(serves).map(|(_, pool)| pool.clone())
}
