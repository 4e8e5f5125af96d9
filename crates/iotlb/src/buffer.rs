// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The prefetch buffer: fully associative, first in first out.

use crate::cache::{Any, Cache, SCANNED_WAYS, Span, Tag};
use crate::geometry::Geometry;

pub(crate) enum Buffer {
    /// No entries, so no buffer.
    None,
    /// Few: in order of age, oldest first.
    Short { entries: Vec<Tag>, most: usize },
    /// Many: a cache of one set whose stamps are never refreshed.
    Long { cache: Any, clock: u64 },
}

impl Buffer {
    pub fn new(entries: usize) -> Self {
        if entries <= SCANNED_WAYS {
            return match entries {
                0 => Self::None,
                most => Self::Short {
                    entries: Vec::with_capacity(most),
                    most,
                },
            };
        }
        match Geometry::new(entries, entries) {
            Ok(geometry) => Self::Long {
                cache: Any::with_shape(geometry),
                clock: 0,
            },
            Err(_) => Self::None,
        }
    }

    #[inline]
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    #[inline]
    pub fn contains(&self, tag: Tag) -> bool {
        match self {
            Self::None => false,
            Self::Short { entries, .. } => entries.contains(&tag),
            Self::Long { cache, .. } => cache.contains(tag, 0),
        }
    }

    /// Removes an entry; whether it was there.
    #[inline]
    pub fn take(&mut self, tag: Tag) -> bool {
        match self {
            Self::None => false,
            Self::Short { entries, .. } => match entries.iter().position(|&e| e == tag) {
                Some(at) => {
                    shift_out(entries, at);
                    entries.pop();
                    true
                }
                None => false,
            },
            Self::Long { cache, .. } => {
                let span = Span {
                    device: tag.device,
                    first: tag.page,
                    last: tag.page,
                };
                cache.remove(span, 0) > 0
            }
        }
    }

    /// Removes the entries of a span.
    #[inline]
    pub fn remove(&mut self, span: Span) {
        match self {
            Self::None => {}
            Self::Short { entries, .. } => {
                if entries.iter().any(|&entry| span.holds(entry)) {
                    entries.retain(|&entry| !span.holds(entry));
                }
            }
            Self::Long { cache, .. } => {
                cache.remove(span, 0);
            }
        }
    }

    /// Adds an entry that is not there; the oldest goes if there is no room.
    #[inline]
    pub fn insert(&mut self, tag: Tag) {
        match self {
            Self::None => {}
            Self::Short { entries, most } => {
                if entries.len() < *most {
                    entries.push(tag);
                } else {
                    shift_out(entries, 0);
                    if let Some(newest) = entries.last_mut() {
                        *newest = tag;
                    }
                }
            }
            Self::Long { cache, clock } => {
                *clock += 1;
                cache.fill(tag, 0, *clock, 0);
            }
        }
    }
}

/// Moves what is behind `at` one forward. A loop, because a call costs more than
/// the few entries do.
#[inline]
fn shift_out(entries: &mut [Tag], at: usize) {
    for to in at + 1..entries.len() {
        entries[to - 1] = entries[to];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_whatever_the_size() {
        for most in [3, SCANNED_WAYS + 1] {
            let mut buffer = Buffer::new(most);
            let tag = |page: usize| Tag {
                device: 0,
                page: page as u64,
            };
            (0..most).for_each(|page| buffer.insert(tag(page)));
            assert!(buffer.take(tag(1)) && !buffer.take(tag(1)));
            buffer.insert(tag(100));
            assert!(buffer.contains(tag(0)));
            buffer.insert(tag(101));
            assert!(!buffer.contains(tag(0)) && buffer.contains(tag(2)));
            let span = Span {
                device: 0,
                first: 2,
                last: 100,
            };
            buffer.remove(span);
            let left = [2, 100, 101].map(|page| buffer.contains(tag(page)));
            assert_eq!(left, [false, false, true]);
        }
        assert!(Buffer::new(0).is_none());
    }
}
