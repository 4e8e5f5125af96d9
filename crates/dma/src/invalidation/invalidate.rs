// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What provides the proof: an invalidation queue, a device-TLB fence, an ioctl.

use super::{Caches, Scope};
use crate::units::{DomainId, IovaRange};
use alloc::sync::Arc;

/// Submits invalidations and polls them. It knows no sequence and makes
/// no proof; [`super::FlushSequence`] does.
///
/// All may be asked by several CPUs at once, and by an interrupt handler on top of another call on
/// the same CPU. [`on_map`](Self::on_map) is asked on each map, with magazines locked and this CPU
/// pinned: it says the same each time, and neither waits nor locks.
///
/// # Safety
/// Memory is reused on the word of [`done`](Self::done) alone. Once it has said yes, nothing that
/// the unit or a device has cached holds what was in `scope` of `domain` and had been cleared when
/// [`submit`](Self::submit) was called, and no access that found its way by it is under way. That
/// stays so. It may say it late, or never, or fail. The same holds of
/// [`submit_ranges`](Self::submit_ranges), and of every one of its ranges, and of what is submitted
/// unattended; and where [`on_map`](Self::on_map) says [`OnMap::Invalidate`], nothing cached says
/// any more that what had been installed is absent. Else a unit needs no more than that says before
/// it sees what was installed.
/// Nothing checks it at run time; over the software unit the oracle does (P1, P3 to P5, P14).
///
/// ```
/// # use ioatlas_dma::{invalidation::*, units::*};
/// struct NoCache;
/// // SAFETY: there is no cache, so nothing is in one.
/// unsafe impl Invalidate for NoCache {
///     type Token = ();
///     fn submit(&self, _: DomainId, _: Scope) -> Result<(), InvalidateError> { Ok(()) }
///     fn done(&self, _: ()) -> Result<bool, InvalidateError> { Ok(true) }
///     fn on_map(&self) -> OnMap { OnMap::Nothing }
/// }
/// ```
///
/// No safe code makes a unit that says "done":
///
/// ```compile_fail,E0200
/// # use ioatlas_dma::{invalidation::*, units::*};
/// struct NoCache;
/// impl Invalidate for NoCache {
///     type Token = ();
///     fn submit(&self, _: DomainId, _: Scope) -> Result<(), InvalidateError> { Ok(()) }
///     fn done(&self, _: ()) -> Result<bool, InvalidateError> { Ok(true) }
/// }
/// ```
#[allow(unsafe_code)]
pub unsafe trait Invalidate: Send + Sync {
    /// Names one submitted invalidation.
    type Token: Copy + Send;

    /// Asks for an invalidation of at least `scope`, with what is in flight drained.
    /// May wait for room.
    ///
    /// Ordering: the caller has fenced; everything it wrote before must be visible to the
    /// unit when it acts.
    ///
    /// # Errors
    /// The unit cannot take the request.
    fn submit(&self, domain: DomainId, scope: Scope) -> Result<Self::Token, InvalidateError>;

    /// Asks for an invalidation of at least `ranges`, which ascend with a gap between any two; of
    /// none of them means the domain. One answer is for all.
    ///
    /// A unit that has nothing better invalidates one scope that covers them all.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    fn submit_ranges(
        &self,
        domain: DomainId,
        ranges: &[IovaRange],
        caches: Caches,
    ) -> Result<Self::Token, InvalidateError> {
        let both = ranges.first().zip(ranges.last());
        let scope = both.map_or(Scope::DOMAIN, |(first, last)| Scope {
            pages: Some(first.around(last)),
            caches,
        });
        self.submit(domain, scope)
    }

    /// As [`submit`](Self::submit), for a caller that does not wait for the answer at once, and may
    /// not ask for it for long: when this returns the unit has the request, and carries it out
    /// without any call of [`done`](Self::done).
    ///
    /// A unit that gathers requests, as [`Combining`](super::Combining) does, may leave what
    /// `submit` is asked for to the looks of those that wait; here there are none. For any other
    /// unit the two are the same. What forwards requests forwards this as such.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    fn submit_unattended(
        &self,
        domain: DomainId,
        scope: Scope,
    ) -> Result<Self::Token, InvalidateError> {
        self.submit(domain, scope)
    }

    /// As [`submit_ranges`](Self::submit_ranges), for a caller as that of
    /// [`submit_unattended`](Self::submit_unattended).
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    fn submit_ranges_unattended(
        &self,
        domain: DomainId,
        ranges: &[IovaRange],
        caches: Caches,
    ) -> Result<Self::Token, InvalidateError> {
        self.submit_ranges(domain, ranges, caches)
    }

    /// Whether that invalidation is done. Once it said yes it always does. A unit that gathers
    /// requests may submit some meanwhile, and wait for room.
    ///
    /// # Errors
    /// The unit failed; the invalidation will never be done.
    fn done(&self, token: Self::Token) -> Result<bool, InvalidateError>;

    /// What must follow an installation before a device may be told of the address. What stands
    /// before a unit says what that says.
    fn on_map(&self) -> OnMap;
    /// Makes what was written to tables visible to a unit that says
    /// [`OnMap::FlushWriteBuffers`].
    ///
    /// # Errors
    /// The unit did not do it.
    fn flush_write_buffers(&self) -> Result<(), InvalidateError> {
        Ok(())
    }
}

/// What must happen between the stores of a map and its return: one row each
/// of the invalidation rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnMap {
    /// The unit sees memory, and caches no absent entry.
    #[default]
    Nothing,
    /// It has write buffers of its own (VT-d 4.1 §6.8, RWBF).
    FlushWriteBuffers,
    /// It caches absent entries (VT-d 4.1 §6.1, caching mode). Where it has write buffers as well, a
    /// submission flushes them first.
    Invalidate,
}

/// Why an invalidation did not happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its fields say it
pub enum InvalidateError {
    /// The unit stopped at a descriptor that it does not take (VT-d 4.1 §11.4.7.1, IQE).
    #[error("the invalidation queue stopped with an error at descriptor {head}")]
    QueueError {
        /// Index of the descriptor.
        head: u32,
    },
    /// It was not done after that many turns of waiting.
    #[error("an invalidation was not done after {turns} turns of waiting")]
    TimedOut {
        /// Turns of the wait loop.
        turns: u64,
    },
    /// A device did not remove translations from its own TLB (VT-d 4.1 §11.4.7.1, ITE). The unit
    /// goes on without it.
    #[error("device {device} did not answer an invalidation of its own TLB")]
    DeviceTimedOut { device: crate::units::SourceId },
    /// The unit took a command and reports that it did nothing (VT-d 4.1 §11.4.6, CAIG
    /// or IAIG = 0).
    #[error("the unit reports that it did not carry out an invalidation")]
    Refused,
    /// The kernel that holds the tables did not remove translations.
    #[error("the host did not remove translations (error number {errno})")]
    Host {
        /// The kernel's error number.
        errno: i32,
    },
    /// The kernel that holds the tables had fewer translations than were made:
    /// something else removes them.
    #[error("the host had only {found} of {range}'s pages: something else removed the others")]
    Missing {
        range: crate::units::IovaRange,
        /// How many of them, or of what was removed together with them, it had.
        found: crate::units::PageCount,
    },
    /// The unit failed earlier and is not used any more.
    #[error("the unit is out of service after an earlier failure")]
    OutOfService,
}

#[allow(unsafe_code)] // a promise
// SAFETY: the one inside does.
unsafe impl<I: Invalidate> Invalidate for Arc<I> {
    type Token = I::Token;
    fn submit(&self, domain: DomainId, scope: Scope) -> Result<Self::Token, InvalidateError> {
        (**self).submit(domain, scope)
    }
    fn submit_ranges(
        &self,
        domain: DomainId,
        ranges: &[IovaRange],
        caches: Caches,
    ) -> Result<Self::Token, InvalidateError> {
        (**self).submit_ranges(domain, ranges, caches)
    }
    fn submit_unattended(
        &self,
        domain: DomainId,
        scope: Scope,
    ) -> Result<Self::Token, InvalidateError> {
        (**self).submit_unattended(domain, scope)
    }
    fn submit_ranges_unattended(
        &self,
        domain: DomainId,
        ranges: &[IovaRange],
        caches: Caches,
    ) -> Result<Self::Token, InvalidateError> {
        (**self).submit_ranges_unattended(domain, ranges, caches)
    }
    fn done(&self, token: Self::Token) -> Result<bool, InvalidateError> {
        (**self).done(token)
    }
    #[inline]
    fn on_map(&self) -> OnMap {
        (**self).on_map()
    }
    fn flush_write_buffers(&self) -> Result<(), InvalidateError> {
        (**self).flush_write_buffers()
    }
}
