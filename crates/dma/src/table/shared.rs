// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Leaves that several mappings share, counted (ATC'15 §4.1).
//!
//! # Theory
//!
//! Under `identity` the address of a page follows from its physical address and permission, so
//! every mapping of the page with that permission has the very same leaf, which has no single
//! owner. Its ten ignored bits count the mappings. A map takes one more by compare-and-swap, absent
//! being 0; an unmap takes one away, and the one that takes the last clears the entry with the same
//! compare-and-swap. So an entry is present exactly while its count is not 0, and no interleaving
//! loses a count or clears an entry that is counted. [`COUNT_MAX`] mappings fit; one more is
//! refused and changes nothing. Marks have no room, transient hints would be another mapping's, and
//! leaves are of one page, since mappings may overlap in part.
//!
//! **Tables are never detached here**: to cover a span whole is not to own it, for another CPU may
//! be installing in it.
//!
//! Ordering: taking one more is a release, so that a device which finds the entry finds what was
//! written to the buffer before *every* map that is counted in it, as each later compare-and-swap
//! continues the release sequence of those before. Taking one away is relaxed for that very reason;
//! where it was the last, the full fence of `FlushSequence::retire` follows, as for any leaf. A map
//! that comes right after the last unmap, and before its flush, makes the entry that was there
//! before: what caches still hold is right. A map under way counts as one from its first page on:
//! where it fails on a later page, a page that was unmapped elsewhere meanwhile stays reachable
//! until the undo has flushed it.
//!
//! Write-back: a call that changed an entry writes its line back before it returns, also if the
//! change was one of count alone: the map that made the entry may not have written it back yet.
//! Writing back late does no harm, as what it writes is what the entry holds by then.

use super::*;

/// As many mappings can share a leaf: ten bits' worth.
pub const COUNT_MAX: u64 = (1 << 10) - 1;

impl<P: Platform, F: Format> Table<P, F> {
    /// Takes one more of every leaf of `range`.
    pub(super) fn share(
        &self,
        p: &P,
        range: IovaRange,
        mut rest: Rest<impl Iterator<Item = PhysRun>>,
        perm: Perm,
    ) -> Result<(), At<InstallCause>> {
        for (_, piece) in pieces::<F>(range, 2) {
            let leaves = self.leaf_table(p, piece.first)?;
            let first = F::index(piece.first, 1);
            let leaves = &leaves[first..first + piece.pages.0 as usize];
            let taken = piece.iter().zip(leaves).try_for_each(|(at, leaf)| {
                let to = rest.run(at)?.first;
                let bare = F::leaf(to, perm, LeafMarks::NONE, 1);
                Self::take_one(leaf, bare, at).map_err(|cause| (at, cause))?;
                rest.take(1);
                Ok(())
            });
            p.publish(leaves);
            taken?;
        }
        Ok(())
    }

    /// Takes one away of every leaf in `range`. Where that was the last, the translation is gone.
    pub(super) fn unshare(&self, p: &P, range: IovaRange) -> Cleared {
        let mut cleared = Cleared::default();
        for (_, piece) in pieces::<F>(range, 2) {
            let Some((leaves, 1)) = self.find_table(p, piece.first) else {
                continue;
            };
            let first = F::index(piece.first, 1);
            let leaves = &leaves[first..first + piece.pages.0 as usize];
            for leaf in leaves {
                if let Some(left) = Self::give_one(leaf) {
                    cleared.found.0 += 1;
                    cleared.gone.0 += u64::from(left == 0);
                }
            }
            p.publish(leaves);
        }
        cleared
    }

    /// Takes one more of `leaf`, which is absent or is `bare` but for its count.
    fn take_one(leaf: &P::A64, bare: u64, at: IovaPage) -> Result<(), InstallCause> {
        let one = 1 << F::COUNT_SHIFT;
        let mut word = leaf.load(Ordering::Relaxed);
        loop {
            let new = match Self::count(word) {
                0 if word == 0 => bare + one,
                _ if Self::uncounted(word) != bare => return Err(InstallCause::AlreadyMapped(at)),
                COUNT_MAX => return Err(InstallCause::Saturated(at)),
                _ => word + one,
            };
            match leaf.compare_exchange(word, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => word = now,
            }
        }
    }

    /// Takes one away of `leaf`; returns how many are left, or `None` if there was none.
    fn give_one(leaf: &P::A64) -> Option<u64> {
        let one = 1 << F::COUNT_SHIFT;
        let mut word = leaf.load(Ordering::Relaxed);
        loop {
            let left = Self::count(word).checked_sub(1)?;
            let new = if left == 0 { 0 } else { word - one };
            match leaf.compare_exchange(word, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(left),
                Err(now) => word = now,
            }
        }
    }

    /// How many mappings share the leaf `entry`.
    pub(super) fn count(entry: u64) -> u64 {
        entry >> F::COUNT_SHIFT & COUNT_MAX
    }

    /// The leaf `entry` without its count.
    fn uncounted(entry: u64) -> u64 {
        entry & !(COUNT_MAX << F::COUNT_SHIFT)
    }
}
