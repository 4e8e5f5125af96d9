// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The design of vhost in the kernel (KVM'17, "Interval tree based IOTLB cache"): a balanced tree by first page, in which each node knows the largest end below
//! it; finding takes steps in the logarithm of the number of runs.
//!
//! The balance is a treap's (Seidel and Aragon, Algorithmica 16, 1996): random priorities, drawn from a fixed seed.

use super::{Locked, Run, Span, Store};

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

/// An interval tree.
#[derive(Clone, Debug, Default)]
pub struct IntervalTree {
    nodes: Vec<Option<Node>>,
    free: Vec<u32>,
    root: Link,
    random: u64,
}

impl IntervalTree {
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

    /// The first run, by page, that has any of `span`: the search that the reach of subtrees is for.
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

    /// Two trees of one: runs before `page`, and the others.
    fn cut(&mut self, link: Link, page: u64) -> (Link, Link) {
        let Some(at) = link else { return (None, None) };
        if self.node(at).run.span.first < page {
            let (less, more) = self.cut(self.node(at).right, page);
            self.node_mut(at).right = less;
            self.fix(at);
            (Some(at), more)
        } else {
            let (less, more) = self.cut(self.node(at).left, page);
            self.node_mut(at).left = more;
            self.fix(at);
            (less, Some(at))
        }
    }
    /// One tree of two, of which the first is all before the second.
    fn join(&mut self, less: Link, more: Link) -> Link {
        let (Some(a), Some(b)) = (less, more) else {
            return less.or(more);
        };
        if self.node(a).priority > self.node(b).priority {
            let right = self.join(self.node(a).right, more);
            self.node_mut(a).right = right;
            self.fix(a);
            Some(a)
        } else {
            let left = self.join(less, self.node(b).left);
            self.node_mut(b).left = left;
            self.fix(b);
            Some(b)
        }
    }

    fn add(&mut self, run: Run) {
        // SplitMix64 (Steele, Lea and Flood, OOPSLA'14)
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
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
        self.nodes.capacity() * size_of::<Option<Node>>() + self.free.capacity() * 4
    }
}
