// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The audit of blocks and nodes: each page is somewhere, once.

use super::{
    BLOCK, Part, TwoSizes,
    buddy::{BLOCK_LG2, Buddy, Count, Node, State},
};
use crate::{iova::slots::*, units::*};
use alloc::{format, string::String};

/// What a walk over all nodes finds.
#[derive(Default)]
struct Walked {
    nodes: usize,
    free: Count,
    allocated: Count,
    carved: Count,
}

impl TwoSizes {
    pub(super) fn check(&self) -> Result<(), String> {
        self.held.audit()?;
        self.blocks.check()?;
        self.buddy.check()?;
        let tree = self.held.tree();
        let all = core::iter::successors(tree.first(), |at| tree.next(*at));
        let mut whole = 0;
        for part in all.flat_map(|at| self.parts(tree.range(at))) {
            if let Part::Whole(range) = part {
                whole += range.pages.0;
            }
        }
        let in_blocks = self.blocks.free().0 + self.buddy.whole_blocks(self.whole_blocks) * BLOCK;
        if in_blocks + whole != self.whole_blocks.pages.0 {
            return Err(format!(
                "{in_blocks} pages of blocks are free or the buddy's, {whole} allocated, of {}",
                self.whole_blocks
            ));
        }
        if self.strays > 0 {
            return Err(format!(
                "{} ranges were taken that were not free, or given back that were not allocated",
                self.strays
            ));
        }
        Ok(())
    }
}

impl Buddy {
    /// How many of the blocks in `range` it has.
    fn whole_blocks(&self, range: IovaRange) -> u64 {
        let blocks = self.roots().map(|root| IovaPage(self.nodes.at(root).first));
        blocks
            .filter(|first| range.first <= *first && *first < range.end())
            .count() as u64
    }

    fn roots(&self) -> impl Iterator<Item = Link> {
        let all = core::iter::successors(self.blocks.first(), |at| self.blocks.next(*at));
        all.map(|at| self.roots[at.slot()])
    }

    fn check(&self) -> Result<(), String> {
        self.blocks.check()?;
        let mut walked = Walked::default();
        for root in self.roots() {
            let node = self.nodes.at(root);
            if node.lg2 != BLOCK_LG2 || node.parent != NIL || node.state == State::Free {
                return Err(format!("{node:?} is a root"));
            }
            self.check_below(root, &mut walked)?;
        }
        if walked.nodes != self.nodes.len() || !self.nodes.adds_up() {
            let nodes = self.nodes.len();
            return Err(format!("{} of {nodes} nodes are reached", walked.nodes));
        }
        let counted = (self.allocated, self.carved);
        if (walked.allocated, walked.carved) != counted {
            return Err(format!(
                "{:?}, {:?}: not {counted:?}",
                walked.allocated, walked.carved
            ));
        }
        let listed = self.free.count(&self.nodes, Node::list)?;
        if listed != walked.free.ranges {
            return Err(format!(
                "{listed} of {} free nodes are listed",
                walked.free.ranges
            ));
        }
        let pages = walked.free.pages + walked.allocated.pages + walked.carved.pages;
        if pages != self.blocks.len() as u64 * BLOCK {
            return Err(format!("{pages} pages in {} blocks", self.blocks.len()));
        }
        Ok(())
    }

    /// Recursion is 17 deep: each child is half its parent.
    fn check_below(&self, at: Link, walked: &mut Walked) -> Result<(), String> {
        let node = *self.nodes.at(at);
        walked.nodes += 1;
        let count = match node.state {
            State::Free => &mut walked.free,
            State::Allocated => &mut walked.allocated,
            State::Carved => &mut walked.carved,
            State::Split(halves) => {
                let [lower, upper] = halves.map(|half| *self.nodes.at(half));
                let sizes = [lower, upper].map(|half| Some(half.lg2) == node.lg2.checked_sub(1));
                let places =
                    (lower.first, upper.first) == (node.first, node.first + (1 << lower.lg2));
                if sizes != [true; 2]
                    || !places
                    || [lower, upper].map(|half| half.parent) != [at; 2]
                {
                    return Err(format!("{node:?} has the halves {lower:?} and {upper:?}"));
                }
                if (lower.state, upper.state) == (State::Free, State::Free) {
                    return Err(format!("both halves of {node:?} are free"));
                }
                return halves
                    .into_iter()
                    .try_for_each(|half| self.check_below(half, walked));
            }
        };
        (count.ranges, count.pages) = (count.ranges + 1, count.pages + (1 << node.lg2));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iova::{AllocKind, locked::Ranges, search::Run};

    fn range(first: u64, pages: u64) -> IovaRange {
        IovaRange::new(IovaPage(first), PageCount(pages))
    }

    /// Two blocks, of which one page is allocated.
    fn build() -> (TwoSizes, IovaRange) {
        let mut both = TwoSizes::new(range(BLOCK, 2 * BLOCK));
        let page = both.take(Run::new(PageCount(1), 1).unwrap()).unwrap();
        both.check().unwrap();
        (both, page)
    }

    #[track_caller]
    fn assert_names(both: &TwoSizes, what: &str) {
        let found = both.check().unwrap_err();
        assert!(found.contains(what), "{found}");
    }

    #[test]
    fn the_audit_names_what_is_broken() {
        let (mut both, page) = build();
        both.give(range(page.first.0 - 1, 1), AllocKind::Dynamic);
        assert_names(&both, "given back that were not allocated");
        let (mut both, page) = build();
        both.give(page, AllocKind::Fixed);
        assert_names(&both, "ranges were given back that were not in use");
        let (mut both, page) = build();
        both.claim((page.first.0, 0), State::Allocated);
        assert_names(&both, "taken that were not free");
        let (mut both, _) = build();
        both.take_blocks(range(BLOCK, BLOCK));
        assert_names(&both, "pages of blocks are free or the buddy's");
        let (mut both, page) = build();
        // as if a block were not given back
        both.buddy.give((page.first.0, 0), State::Allocated);
        assert_names(&both, "pages of blocks are free or the buddy's");
        let (mut both, _) = build();
        both.buddy.allocated.pages += 1;
        assert_names(&both, "not (");
        let (mut both, page) = build();
        let allocated = both.buddy.node(page.first.0, 0).unwrap();
        both.buddy.nodes.at_mut(allocated).state = State::Free;
        assert_names(&both, "both halves of");
    }
}
