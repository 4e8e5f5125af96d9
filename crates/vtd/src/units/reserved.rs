// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Reserved memory: what firmware set devices to work on, reached by them at its own address (VT-d
//! 4.1 §8.4).

use alloc::vec::Vec;
use ioatlas_dma::{
    domain::{Domain, Lent, MapError, Mapping},
    platform::Platform,
    translator::Translator,
    units::{ByteCount, Direction, GRANULE, Iova, PageCount, PhysRange, PhysRun},
};

/// Why reserved memory cannot be mapped.
#[allow(missing_docs)] // its fields say it
#[derive(Debug, thiserror::Error)]
#[error("reserved memory of {} pages at {}: {cause}", run.pages, run.first.addr())]
pub struct ReservedError {
    pub run: PhysRun,
    pub cause: MapError,
}

/// Maps `runs` where they are, for reading and writing. The mappings last until the device has a
/// driver of its own that says it needs them no more; until then nothing else gets their addresses.
///
/// # Errors
/// [`ReservedError`]; what was mapped before is unmapped again.
///
/// # Safety
/// Devices of the domain write to `runs` from now on. They are what firmware's tables say of these
/// devices ([`Units::reserved_for`](super::Units::reserved_for)), or keep the promise of
/// [`Lent::new`] for as long as they are mapped.
#[allow(unsafe_code)] // a promise of its caller's
pub unsafe fn map_reserved<P: Platform, T: Translator<P>>(
    domain: &Domain<P, T>,
    runs: &[PhysRun],
) -> Result<Vec<Mapping>, ReservedError> {
    let mut done = Vec::with_capacity(runs.len());
    for run in runs {
        let at = run.first.addr();
        // more bytes than there are: map_at refuses them, by name
        let memory = PhysRange::new(at, ByteCount(run.pages.0.saturating_mul(GRANULE)));
        // SAFETY: our caller has promised it.
        #[allow(unsafe_code)]
        let memory = unsafe { Lent::new(memory) };
        match domain.map_at(Iova(at.0), memory, Direction::Bidirectional) {
            Ok(mapping) => done.push(mapping),
            Err(cause) => {
                for mapping in done {
                    // what cannot be unmapped is quarantined, and the first error is the one to
                    // tell
                    let _ = domain.unmap(mapping);
                }
                return Err(ReservedError { run: *run, cause });
            }
        }
    }
    Ok(done)
}

/// Ascending; what overlaps or touches is one.
pub(super) fn merged(mut runs: Vec<PhysRun>) -> Vec<PhysRun> {
    runs.sort_by_key(|run| run.first);
    runs.dedup_by(|next, before| {
        let end = before.first.0 + before.pages.0;
        let touches = next.first.0 <= end;
        if touches {
            let end = end.max(next.first.0 + next.pages.0);
            before.pages = PageCount(end - before.first.0);
        }
        touches
    });
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use ioatlas_dma::units::PhysPage;

    #[test]
    fn runs_that_overlap_or_touch_are_one() {
        let run = |(first, pages)| PhysRun::new(PhysPage(first), PageCount(pages));
        let of = |runs: &[(u64, u64)]| merged(runs.iter().copied().map(run).collect());
        let expected = |runs: &[(u64, u64)]| runs.iter().copied().map(run).collect::<Vec<_>>();
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[(8, 2), (1, 2)]), expected(&[(1, 2), (8, 2)]));
        assert_eq!(of(&[(3, 2), (1, 2), (9, 1)]), expected(&[(1, 4), (9, 1)]));
        assert_eq!(of(&[(1, 9), (2, 2), (4, 7)]), expected(&[(1, 10)]));
        assert_eq!(of(&[(1, 1), (1, 1)]), expected(&[(1, 1)]));
    }
}
