// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What went wrong with a range fails one invalidation, which is one that covers it; others free
//! what they have to.

use crate::suite::rig::*;
use ioatlas_dma::{domain::*, invalidation::InvalidateError, units::*};
use ioatlas_vfio::{kernel::Errno, platform::Buffer, simulated::*};

fn deferred() -> PolicyConfig {
    let mut named = ioatlas_dma::design::policies();
    let deferred = named.find(|policy| policy.name == "deferred-percpu");
    deferred.expect("it is in the registry").config
}

/// The next call of the kernel fails.
fn fail_next(rig: &Rig, errno: Errno) {
    rig.kernel.fail(Some(Failure { after: 0, errno }));
}

/// Maps page `nth` of `buffer`.
fn map(rig: &Rig, buffer: &Buffer, nth: u64) -> Mapping {
    let page = buffer.part(ByteCount(nth << GRANULE_LG2), ByteCount(GRANULE));
    let mapped = rig.domain.map(page.expect("inside"), Direction::ToDevice);
    mapped.expect("there is room")
}

/// What makes the kernel be asked again for what it had refused to end.
#[derive(Clone, Copy, Debug)]
enum Again {
    /// Another unmap.
    Unmap,
    /// A map, which the kernel refuses as there is no room.
    FullMap,
}

#[test]
fn what_an_invalidation_failed_for_fails_no_other() {
    let designs = [
        rbtree(PolicyConfig::Strict),
        DomainConfig::new(identity(), PolicyConfig::Strict),
    ];
    for kind in KINDS {
        for design in designs {
            for again in [Again::Unmap, Again::FullMap] {
                let rig = Rig::new(kind, design);
                let buffer = rig.buffer(3);
                let lost = map(&rig, &buffer, 0);
                let at = lost.iova();
                fail_next(&rig, Errno::BUSY);
                match rig.domain.unmap(lost).unwrap_err() {
                    UnmapError::Invalidate {
                        cause: InvalidateError::Host { .. },
                        ..
                    } => {}
                    other => panic!("{kind:?}: {other}"),
                }
                rig.kernel.fail(None);
                // when it is asked again the kernel does not have it any more
                rig.kernel.steal(at);
                if let Again::FullMap = again {
                    fail_next(&rig, Errno::NOSPC);
                }
                let other = map(&rig, &buffer, 2);
                rig.kernel.fail(None);
                rig.domain.unmap(other).unwrap();
                rig.domain.audit().unwrap();
                // ends with an invalidation of everything
                let domain = std::sync::Arc::into_inner(rig.domain).unwrap();
                if let Err(error) = domain.close() {
                    panic!("{kind:?}, {again:?}: told twice: {error}");
                }
            }
        }
    }
}

/// Five pages with the middle of each three in use, so that no two of the others go by one call:
/// ascending.
fn apart(rig: &Rig, buffer: &Buffer) -> (Vec<Mapping>, Vec<Mapping>) {
    let mut all: Vec<Mapping> = (0..5).map(|nth| map(rig, buffer, nth)).collect();
    all.sort_by_key(Mapping::iova);
    let (mut used, mut unused) = (Vec::new(), Vec::new());
    for (nth, mapping) in all.into_iter().enumerate() {
        match nth % 2 {
            0 => unused.push(mapping),
            _ => used.push(mapping),
        }
    }
    (used, unused)
}

#[test]
fn one_invalidation_takes_all_that_was_missing() {
    for kind in KINDS {
        let rig = Rig::new(kind, rbtree(deferred()));
        let buffer = rig.buffer(5);
        let (used, unused) = apart(&rig, &buffer);
        for (nth, mapping) in unused.into_iter().enumerate() {
            if nth > 0 {
                rig.kernel.steal(mapping.iova());
            }
            rig.domain.unmap(mapping).unwrap();
        }
        let first = rig.domain.flush().unwrap_err();
        assert!(
            matches!(first, InvalidateError::Missing { .. }),
            "{kind:?}: {first}"
        );
        let lost = rig.domain.stats().quarantined.pages;
        assert_eq!(lost, PageCount(3), "{kind:?}: all that it covered");
        for mapping in used {
            rig.domain.unmap(mapping).unwrap();
        }
        assert_eq!(rig.domain.flush(), Ok(()), "{kind:?}: of the one before");
        assert_eq!(rig.domain.stats().quarantined.pages, lost, "{kind:?}");
        rig.domain.audit().unwrap();
    }
}

#[test]
fn what_was_missing_beside_what_was_refused_is_told_with_it() {
    for kind in KINDS {
        let rig = Rig::new(kind, rbtree(deferred()));
        let buffer = rig.buffer(5);
        let (used, unused) = apart(&rig, &buffer);
        rig.kernel.steal(unused[2].iova());
        for mapping in unused {
            rig.domain.unmap(mapping).unwrap();
        }
        fail_next(&rig, Errno::BUSY);
        let first = rig.domain.flush().unwrap_err();
        assert!(
            matches!(first, InvalidateError::Host { .. }),
            "{kind:?}: {first}"
        );
        rig.kernel.fail(None);
        assert_eq!(rig.domain.flush(), Ok(()), "{kind:?}");
        for mapping in used {
            rig.domain.unmap(mapping).unwrap();
        }
        assert_eq!(rig.domain.flush(), Ok(()), "{kind:?}");
        assert_eq!(rig.calls().held, 0, "{kind:?}: what was refused has ended");
        rig.domain.audit().unwrap();
    }
}
