// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which devices keep translations of their own, and of which domain.
//!
//! A device is *declared* by the host, which read its ATS capability; it is *active* in a domain
//! from before its context entry is made until after its TLB was flushed. An invalidation asks for
//! the active devices of the domain.
//!
//! **No device is missed**: entering a device and reading which are there are a store-buffering
//! pair, as of [`ioatlas_dma::invalidation`]. An unmap clears, fences, then looks here; an attach
//! enters the device here, fences, then makes the context entry. If the unmap did not see the
//! device, then whatever the device fetches, it fetches after the clearing. Where there is no
//! device at all, the lock is not taken: one relaxed load tells.
//!
//! The lock is alone: nothing else is taken inside, and memory is allocated outside.

use crate::plan::AtsDevice;
use alloc::vec::Vec;
use ioatlas_dma::{
    platform::{Atomic64, Lock, Ordering, Platform},
    units::{DomainId, SourceId},
};

/// The declared devices of one unit.
pub(super) struct DeviceTlbs<P: Platform> {
    /// Sorted by source id.
    all: P::Lock<Vec<Declared>>,
    active: P::A64,
}

#[derive(Clone, Copy)]
struct Declared {
    ats: AtsDevice,
    domain: Option<DomainId>,
}

/// What a device is to an attach.
pub(super) enum Activation {
    /// It has no TLB that was declared.
    Undeclared,
    /// It is active now.
    Active,
    /// It was active before, in that domain.
    Before(DomainId),
}

impl<P: Platform> DeviceTlbs<P> {
    pub(super) fn new() -> Self {
        DeviceTlbs {
            all: P::Lock::new(Vec::new()),
            active: P::A64::new(0),
        }
    }

    /// Declares a device, or changes its depth; the domain where it is active, if it is,
    /// which is an error.
    pub(super) fn declare(&self, ats: AtsDevice) -> Result<(), DomainId> {
        let mut room = Vec::new();
        loop {
            let outcome = self.all.with(|all| {
                let at = match find(all, ats.device) {
                    Ok(at) => {
                        let found = &mut all[at];
                        return match found.domain {
                            Some(domain) => Some(Err(domain)),
                            None => {
                                found.ats = ats;
                                Some(Ok(()))
                            }
                        };
                    }
                    Err(at) => at,
                };
                if all.len() == all.capacity() {
                    if room.capacity() <= all.len() {
                        return None;
                    }
                    room.append(all);
                    core::mem::swap(all, &mut room);
                }
                all.insert(at, Declared { ats, domain: None });
                Some(Ok(()))
            });
            match outcome {
                Some(result) => return result,
                None => room = Vec::with_capacity(2 * room.capacity() + 4),
            }
        }
    }

    /// Forgets a device that is not active; the domain where it is, otherwise.
    pub(super) fn withdraw(&self, device: SourceId) -> Result<(), DomainId> {
        self.all.with(|all| match find(all, device) {
            Ok(at) => match all[at].domain {
                Some(domain) => Err(domain),
                None => {
                    all.remove(at);
                    Ok(())
                }
            },
            Err(_) => Ok(()),
        })
    }

    /// Makes `device` active in `domain`, before its context entry is made.
    pub(super) fn activate(&self, p: &P, device: SourceId, domain: DomainId) -> Activation {
        let activation = self.all.with(|all| {
            let Ok(at) = find(all, device) else {
                return Activation::Undeclared;
            };
            match all[at].domain {
                Some(before) => Activation::Before(before),
                None => {
                    all[at].domain = Some(domain);
                    self.active.fetch_add(1, Ordering::Relaxed);
                    Activation::Active
                }
            }
        });
        p.fence(Ordering::SeqCst);
        activation
    }

    /// Ends that, after its TLB was flushed or its entry never made.
    pub(super) fn deactivate(&self, device: SourceId) {
        self.all.with(|all| {
            if let Ok(at) = find(all, device)
                && all[at].domain.take().is_some()
            {
                self.active.fetch_add(u64::MAX, Ordering::Relaxed);
            }
        });
    }

    /// The device, if it is active in `domain`.
    pub(super) fn of_device(&self, device: SourceId, domain: DomainId) -> Option<AtsDevice> {
        if self.active.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.all.with(|all| {
            let found = all[find(all, device).ok()?];
            (found.domain == Some(domain)).then_some(found.ats)
        })
    }

    /// Active devices of `domain` behind `after`, as many as there is room for in
    /// `into`, by source id.
    pub(super) fn of_domain<'i>(
        &self,
        domain: DomainId,
        after: Option<SourceId>,
        into: &'i mut [AtsDevice],
    ) -> &'i [AtsDevice] {
        if self.active.load(Ordering::Relaxed) == 0 {
            return &[];
        }
        let count = self.all.with(|all| {
            let behind = all
                .iter()
                .filter(|d| d.domain == Some(domain) && Some(d.ats.device) > after);
            let slots = into.iter_mut().zip(behind);
            slots.map(|(slot, found)| *slot = found.ats).count()
        });
        &into[..count]
    }
}

fn find(all: &[Declared], device: SourceId) -> Result<usize, usize> {
    all.binary_search_by_key(&device, |declared| declared.ats.device)
}
