// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The audit of the tree, and its tests against a `BTreeMap`.

use super::*;
use alloc::{format, string::String};

impl<A: Augment> RangeTree<A> {
    /// Checks every invariant; linear in the slab.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.color(NIL) != Black || self.node(NIL).child != [NIL; 2] || self.parent(NIL) != NIL {
            return Err("the sentinel was written to".into());
        }
        let mut seen = 0;
        self.check_below(self.root, NIL, &mut seen)?;
        if seen != self.len {
            return Err(format!("{seen} nodes in a tree of {}", self.len));
        }
        let mut below = self.first();
        while let Some(at) = below {
            below = self.next(at);
            if let Some(above) = below
                && (self.range(at).end() > self.range(above).first || self.prev(above) != Some(at))
            {
                return Err(format!("{} before {}", self.range(at), self.range(above)));
            }
        }
        let (mut unused, mut slot) = (0, self.free);
        while slot != NIL && unused < self.nodes.len() {
            unused += 1;
            slot = self.child(slot, Left);
        }
        if 1 + self.len + unused != self.nodes.len() {
            let slots = self.nodes.len();
            return Err(format!(
                "{} ranges and {unused} unused slots, of {slots} with the sentinel",
                self.len
            ));
        }
        Ok(())
    }

    /// The number of black nodes on each way down from `at`. Recursion is bounded by `seen`, even
    /// in a broken tree.
    fn check_below(&self, at: Link, parent: Link, seen: &mut usize) -> Result<u32, String> {
        if at == NIL {
            return Ok(0);
        }
        *seen += 1;
        let node = self.node(at);
        if *seen > self.len || node.parent != parent || node.range.pages.0 == 0 {
            return Err(format!("a wrong link to {}", node.range));
        }
        if node.color == Red && (at == self.root || self.color(parent) == Red) {
            return Err(format!("{} is red below red, or at the root", node.range));
        }
        if node.sum != self.summed(at) {
            return Err(format!(
                "{} knows something else than what is below",
                node.range
            ));
        }
        let left = self.check_below(node.child[0], at, seen)?;
        let right = self.check_below(node.child[1], at, seen)?;
        if left != right {
            return Err(format!(
                "{} has {left} black nodes below to the left, {right} to the right",
                node.range
            ));
        }
        Ok(left + u32::from(node.color == Black))
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn page(first: u64) -> IovaRange {
        IovaRange::new(IovaPage(first), PageCount(1))
    }

    /// Pages at and below, and where the lowest begins.
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Pages(u64, u64);

    impl Augment for Pages {
        fn of(range: IovaRange, left: Option<Self>, right: Option<Self>) -> Self {
            let of = |side: Option<Self>| side.map_or(0, |pages| pages.0);
            let first = left.map_or(range.first.0, |left| left.1);
            Pages(range.pages.0 + of(left) + of(right), first)
        }
    }

    fn depth(tree: &RangeTree, at: Link) -> u32 {
        match at.some() {
            None => 0,
            Some(at) => {
                1 + depth(tree, tree.child(at, Left)).max(depth(tree, tree.child(at, Right)))
            }
        }
    }

    #[test]
    fn ascending_inserts_stay_shallow_and_slots_are_reused() {
        let mut tree = RangeTree::<()>::new();
        for first in 0..1000 {
            tree.insert(page(first));
            tree.check().unwrap();
        }
        // 2 log2(1001) < 20; a list would be 1000 deep
        assert!(depth(&tree, tree.root) < 20);
        for first in 0..1000 {
            tree.remove(tree.find(IovaPage(first)).unwrap());
            tree.check().unwrap();
        }
        assert_eq!((tree.first(), tree.last(), tree.len()), (None, None, 0));
        let slots = tree.nodes.len();
        for first in 0..1000 {
            tree.insert(page(first));
        }
        assert_eq!(tree.nodes.len(), slots);
    }

    #[test]
    fn check_names_what_is_broken() {
        fn build<A: Augment>() -> RangeTree<A> {
            let mut tree = RangeTree::new();
            for first in 0..7 {
                tree.insert(page(2 * first));
            }
            tree
        }
        let mut red = build::<()>();
        red.paint(red.root, Red);
        assert!(red.check().unwrap_err().contains("red"));
        let mut order = build::<()>();
        let first = order.first().unwrap();
        order.node_mut(first).range = page(3);
        assert!(order.check().unwrap_err().contains("before"));
        let mut black = build::<()>();
        let last = black.last().unwrap();
        let flipped = if black.color(last) == Red { Black } else { Red };
        black.paint(last, flipped);
        assert!(black.check().is_err());
        let mut stale = build::<Pages>();
        stale.node_mut(stale.root).sum.0 += 1;
        assert!(stale.check().unwrap_err().contains("knows"));
        let mut lost = build::<()>();
        lost.len -= 1;
        assert!(lost.check().is_err());
    }

    proptest! {
        #[test]
        fn agrees_with_a_btreemap(ops in prop::collection::vec((0u64..64, 1u64..5, any::<bool>()), 1..400)) {
            let mut tree = RangeTree::<Pages>::new();
            let mut model: BTreeMap<u64, u64> = BTreeMap::new();
            for (first, pages, add) in ops {
                let range = IovaRange::new(IovaPage(first), PageCount(pages));
                let hit = model.iter().any(|(f, n)| *f < first + pages && first < f + n);
                let found = tree.overlapping(range);
                prop_assert_eq!(found.is_some(), hit);
                prop_assert!(found.is_none_or(|at| tree.range(at).overlaps(&range)));
                if add && !hit {
                    let at = tree.insert(range);
                    prop_assert_eq!(tree.range(at), range);
                    model.insert(first, pages);
                } else if let Some(at) = tree.find(IovaPage(first)) {
                    prop_assert_eq!(model.remove(&first), Some(tree.range(at).pages.0));
                    tree.remove(at);
                } else {
                    prop_assert!(!model.contains_key(&first));
                }
                tree.check().map_err(TestCaseError::fail)?;
                let mut ascending = Vec::new();
                let mut at = tree.first();
                while let Some(here) = at {
                    ascending.push((tree.range(here).first.0, tree.range(here).pages.0));
                    at = tree.next(here);
                }
                prop_assert_eq!(ascending, model.iter().map(|(f, n)| (*f, *n)).collect::<Vec<_>>());
                prop_assert_eq!(tree.last().map(|at| tree.range(at).first.0), model.keys().last().copied());
                prop_assert_eq!(tree.len(), model.len());
                let below = tree.last_below(IovaPage(first)).map(|at| tree.range(at).first.0);
                prop_assert_eq!(below, model.range(..first).next_back().map(|(f, _)| *f));
                let from = tree.first_from(IovaPage(first)).map(|at| tree.range(at).first.0);
                prop_assert_eq!(from, model.range(first..).next().map(|(f, _)| *f));
                let sum = tree.root.some().map(|at| tree.sum(at));
                let lowest = model.keys().next().copied();
                prop_assert_eq!(sum, lowest.map(|first| Pages(model.values().sum(), first)));
            }
        }
    }
}
