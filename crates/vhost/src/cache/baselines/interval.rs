// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The design of vhost in the kernel (KVM'17, "Interval tree based IOTLB cache"): a balanced tree
//! by first page, in which each node knows the largest end below it; finding takes steps in the
//! logarithm of the number of runs.
//!
//! The balance is a treap's (Seidel and Aragon, Algorithmica 16, 1996): random priorities. They
//! bound the depth for every order of insertions that does not depend on them, so each tree draws
//! them from a seed of the system's: a front end, or a guest by the order of its misses, chooses
//! the IOVAs, and priorities that it knows in advance let it make the tree a list. Nothing
//! recurses, so that no depth can exhaust a stack.

use super::{Locked, Run, Span, Store};
use std::hash::{BuildHasher, Hasher, RandomState};

/// The interval tree for each reader, under its reader-writer lock.
pub type IntervalIotlb = Locked<IntervalTree>;

type Link = Option<u32>;

#[derive(Clone, Debug)]
struct Node {
    run: Run,
    priority: u64,
    /// The largest end page in the subtree.
    reach: u64,
    left: Link,
    right: Link,
}

/// An interval tree of runs, balanced as a treap.
#[derive(Clone, Debug)]
pub struct IntervalTree {
    nodes: Vec<Option<Node>>,
    free: Vec<u32>,
    root: Link,
    random: u64,
    /// Nodes that a walk came through, from the top, each with the side on which it went
    /// on. Empty between walks.
    path: Vec<(u32, Side)>,
}

/// A child of a node.
#[derive(Clone, Copy, Debug)]
enum Side {
    Left,
    Right,
}

impl Default for IntervalTree {
    fn default() -> Self {
        // the standard library's keys are the system's random numbers
        Self::seeded(RandomState::new().build_hasher().finish())
    }
}

impl IntervalTree {
    fn seeded(random: u64) -> Self {
        IntervalTree {
            nodes: Vec::new(),
            free: Vec::new(),
            root: None,
            random,
            path: Vec::new(),
        }
    }

    fn node(&self, at: u32) -> &Node {
        self.nodes[at as usize]
            .as_ref()
            .expect("linked nodes are there")
    }
    fn node_mut(&mut self, at: u32) -> &mut Node {
        self.nodes[at as usize]
            .as_mut()
            .expect("linked nodes are there")
    }
    fn reach(&self, link: Link) -> u64 {
        link.map_or(0, |at| self.node(at).reach)
    }
    fn fix(&mut self, at: u32) {
        let node = self.node(at);
        let below = self.reach(node.left).max(self.reach(node.right));
        let reach = node.run.span.end.max(below);
        self.node_mut(at).reach = reach;
    }

    /// The first run, by page, that has any of `span`: the search that the reach
    /// of subtrees is for.
    #[inline]
    fn first_in(&self, span: Span) -> Option<u32> {
        let mut link = self.root;
        while let Some(at) = link {
            let node = self.node(at);
            if self.reach(node.left) > span.first {
                link = node.left; // if any run has some of the span, one there has
            } else if node.run.span.and(span).is_some() {
                return Some(at);
            } else if node.run.span.first < span.end {
                link = node.right;
            } else {
                return None;
            }
        }
        None
    }

    /// Gives the last node of the path its child, and takes it off.
    fn climb(&mut self, child: Link) -> Link {
        let (at, side) = self.path.pop()?;
        let node = self.node_mut(at);
        match side {
            Side::Left => node.left = child,
            Side::Right => node.right = child,
        }
        self.fix(at);
        Some(at)
    }

    /// Two trees of one: runs before `page`, and the others.
    fn cut(&mut self, mut link: Link, page: u64) -> (Link, Link) {
        while let Some(at) = link {
            let node = self.node(at);
            let (side, next) = match node.run.span.first < page {
                true => (Side::Right, node.right),
                false => (Side::Left, node.left),
            };
            self.path.push((at, side));
            link = next;
        }
        let (mut less, mut more) = (None, None);
        while let Some((_, side)) = self.path.last() {
            match side {
                Side::Right => less = self.climb(less),
                Side::Left => more = self.climb(more),
            }
        }
        (less, more)
    }
    /// One tree of two, of which the first is all before the second.
    fn join(&mut self, mut less: Link, mut more: Link) -> Link {
        while let (Some(a), Some(b)) = (less, more) {
            if self.node(a).priority > self.node(b).priority {
                self.path.push((a, Side::Right));
                less = self.node(a).right;
            } else {
                self.path.push((b, Side::Left));
                more = self.node(b).left;
            }
        }
        let mut joined = less.or(more);
        while !self.path.is_empty() {
            joined = self.climb(joined);
        }
        joined
    }

    fn add(&mut self, run: Run) {
        // SplitMix64 (Steele, Lea and Flood, OOPSLA'14); three lines are not worth a dependency
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let node = Node {
            run,
            priority: z ^ z >> 31,
            reach: run.span.end,
            left: None,
            right: None,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = Some(node);
                at
            }
            None => {
                self.nodes.push(Some(node));
                (self.nodes.len() - 1) as u32
            }
        };
        let (less, more) = self.cut(self.root, run.span.first);
        let less = self.join(less, Some(at));
        self.root = self.join(less, more);
    }
    fn delete(&mut self, at: u32) -> Run {
        let first = self.node(at).run.span.first;
        let (less, rest) = self.cut(self.root, first);
        let (_, more) = self.cut(rest, first + 1);
        self.root = self.join(less, more);
        self.free.push(at);
        let node = self.nodes[at as usize].take();
        node.expect("it was there").run
    }
}

impl super::private::Sealed for IntervalTree {}

impl Store for IntervalTree {
    const NAME: &'static str = "interval";

    fn empty() -> Self {
        Self::default()
    }
    fn insert(&mut self, mut run: Run) {
        let (first, end) = (run.span.first, run.span.end);
        if let Some(after) = self.first_in(Span {
            first: end,
            end: end + 1,
        }) && run.joins(&self.node(after).run)
        {
            run.span.end = self.delete(after).span.end;
        }
        if let Some(page) = first.checked_sub(1)
            && let Some(before) = self.first_in(Span {
                first: page,
                end: first,
            })
            && self.node(before).run.joins(&run)
        {
            let before = self.delete(before);
            run.span.first = before.span.first;
            run.host = before.host;
        }
        self.add(run);
    }
    fn remove(&mut self, span: Span, removed: &mut dyn FnMut(Run)) {
        while let Some(at) = self.first_in(span) {
            let run = self.delete(at);
            if let Some(gone) = run.part(span) {
                removed(gone);
            }
            let before = Span {
                first: run.span.first,
                end: span.first,
            };
            let after = Span {
                first: span.end,
                end: run.span.end,
            };
            for left in [before, after].into_iter().filter_map(|s| run.part(s)) {
                self.add(left);
            }
        }
    }
    #[inline]
    fn find(&self, page: u64) -> Option<Run> {
        let at = self.first_in(Span {
            first: page,
            end: page + 1,
        })?;
        Some(self.node(at).run)
    }
    fn count(&self) -> usize {
        self.nodes.len() - self.free.len()
    }
    fn places(&self) -> usize {
        self.nodes.len()
    }
    fn nth(&self, place: usize) -> Option<Run> {
        Some(self.nodes.get(place)?.as_ref()?.run)
    }
    fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Option<Node>>()
            + self.free.capacity() * 4
            + self.path.capacity() * size_of::<(u32, Side)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::HostAddr;
    use ioatlas_dma::units::Perm;

    fn run(page: u64) -> Run {
        let span = Span {
            first: page,
            end: page + 1,
        };
        // none joins another
        let host = HostAddr(page << 20);
        let perm = Perm::ReadWrite;
        Run { span, host, perm }
    }

    /// Nodes on the longest way down.
    fn depth(tree: &IntervalTree) -> usize {
        let mut deepest = 0;
        let mut open = vec![(tree.root, 1)];
        while let Some((link, level)) = open.pop() {
            if let Some(at) = link {
                deepest = deepest.max(level);
                let node = tree.node(at);
                open.extend([(node.left, level + 1), (node.right, level + 1)]);
            }
        }
        deepest
    }

    /// Pages in an order that makes a list of a tree of these priorities: the higher the priority
    /// of the next one, the lower its page.
    fn attack(like: &IntervalTree, runs: usize) -> Vec<u64> {
        let mut like = like.clone();
        (0..runs as u64).for_each(|page| like.insert(run(page)));
        let priorities = |at: &u32| std::cmp::Reverse(like.node(*at).priority);
        let mut order: Vec<u32> = (0..runs as u32).collect();
        order.sort_by_key(priorities);
        let mut pages = vec![0; runs];
        for (rank, at) in order.into_iter().enumerate() {
            pages[at as usize] = rank as u64;
        }
        pages
    }

    /// Random trees of so many runs are deeper than 100 less than once in 10^30.
    #[test]
    fn knowing_one_tree_is_not_knowing_the_next() {
        let pages = attack(&IntervalTree::empty(), 4000);
        let mut tree = IntervalTree::empty();
        pages.iter().for_each(|page| tree.insert(run(*page)));
        let depth = depth(&tree);
        assert!(depth < 100, "{depth} levels for {} runs", tree.count());
    }

    #[test]
    fn a_tree_that_is_a_list_needs_no_stack() {
        const RUNS: usize = 4000;
        let work = || {
            let mut tree = IntervalTree::empty();
            let pages = attack(&tree, RUNS);
            pages.iter().for_each(|page| tree.insert(run(*page)));
            assert_eq!(depth(&tree), RUNS);
            let found = |tree: &IntervalTree, page| tree.find(page) == Some(run(page));
            assert!(pages.iter().all(|page| found(&tree, *page)));
            let half = Span {
                first: RUNS as u64 / 4,
                end: RUNS as u64 * 3 / 4,
            };
            let mut gone = 0;
            tree.remove(half, &mut |_| gone += 1);
            assert_eq!((gone, tree.count()), (RUNS / 2, RUNS / 2));
            assert!(
                pages
                    .iter()
                    .all(|page| found(&tree, *page) != half.has(*page))
            );
        };
        let small = std::thread::Builder::new().stack_size(64 << 10);
        small.spawn(work).unwrap().join().unwrap();
    }
}
