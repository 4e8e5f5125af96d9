// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A red-black tree of disjoint page ranges, in a slab.
//!
//! Nodes are slots of one vector and link to each other by index, so the tree needs no unsafe code,
//! and no allocation once the vector has grown to the largest number of ranges at a time: slots of
//! removed nodes are chained into a free list through their left link. A node keeps its slot for as
//! long as it is in the tree, so a [`Link`] to it stays good.
//!
//! Slot 0 is the sentinel that stands for every absent child and for the root's parent; it is
//! black, always, and its parent link is scratch space of `remove` (the one moment at which an
//! absent child needs a parent).
//!
//! A tree can be *augmented*: each node then carries a summary of the ranges at and below it
//! ([`Augment`]), which insert, remove and rotations keep up to date, and by which a search can
//! leave whole subtrees out. Without one (`()`) nothing is carried or kept.
//!
//! Invariants ([`RangeTree::check`]): in-order, ranges ascend and are disjoint; a red node has
//! black children; every way down from the root passes equally many black nodes; each summary is
//! that of its range and its children. Hence the depth is at most 2 log2(n + 1). The algorithms are
//! those of textbooks, with left and right exchanged by a [`Side`] instead of by a second copy.

mod check;

use crate::{platform::room::Larger, units::*};
use alloc::{vec, vec::Vec};

/// The slot of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link(u32);

/// The slot of the sentinel.
const NIL: Link = Link(0);

impl Link {
    /// The number of the slot, for what others keep beside each node.
    pub(super) fn slot(self) -> usize {
        self.0 as usize
    }
    fn some(self) -> Option<Link> {
        (self != NIL).then_some(self)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left = 0,
    Right = 1,
}
use Side::{Left, Right};

impl Side {
    fn other(self) -> Side {
        match self {
            Left => Right,
            Right => Left,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Color {
    Red,
    Black,
}
use Color::{Black, Red};

/// What a node knows of the ranges at and below it.
pub trait Augment: Copy + PartialEq + Send {
    /// Whether there is anything to know.
    const KEPT: bool = true;
    /// That of a node, from its range and from what its children know.
    fn of(range: IovaRange, left: Option<Self>, right: Option<Self>) -> Self;
}

impl Augment for () {
    const KEPT: bool = false;
    fn of(_: IovaRange, _: Option<()>, _: Option<()>) {}
}

/// 32 bytes without a summary: two to a cache line.
pub struct Node<A> {
    range: IovaRange,
    sum: A,
    parent: Link,
    child: [Link; 2],
    color: Color,
}

/// Disjoint ranges, in order.
pub struct RangeTree<A: Augment = ()> {
    nodes: Vec<Node<A>>,
    root: Link,
    free: Link,
    len: usize,
}

impl<A: Augment> RangeTree<A> {
    pub(super) fn new() -> Self {
        let nothing = IovaRange::new(IovaPage(0), PageCount(0));
        let sentinel = Node {
            range: nothing,
            sum: A::of(nothing, None, None),
            parent: NIL,
            child: [NIL; 2],
            color: Black,
        };
        RangeTree {
            nodes: vec![sentinel],
            root: NIL,
            free: NIL,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Slots that have ever been used.
    pub(super) fn slots(&self) -> usize {
        self.nodes.len()
    }

    /// Whether `ranges` have room in the tree.
    #[inline]
    pub(super) fn has_room(&self, ranges: usize) -> bool {
        Larger::has(&self.nodes, ranges.saturating_add(1))
    }

    /// What is needed to have `ranges` in the tree; `None` where they have room.
    pub(super) fn short(&self, ranges: usize) -> Option<Larger<Node<A>>> {
        Larger::of(&self.nodes, ranges.saturating_add(1))
    }

    /// Grows into what was allocated.
    pub(super) fn enlarge(&mut self, room: &mut Option<Larger<Node<A>>>) {
        if let Some(room) = room {
            room.take_over(&mut self.nodes);
        }
    }

    /// The pages of a node.
    pub(super) fn range(&self, at: Link) -> IovaRange {
        self.node(at).range
    }

    /// What a node knows of the ranges at and below it.
    pub(super) fn sum(&self, at: Link) -> A {
        self.node(at).sum
    }

    /// Where a search goes down from.
    pub(super) fn root(&self) -> Option<Link> {
        self.root.some()
    }

    /// The root of the lower ranges of this subtree.
    pub(super) fn left(&self, at: Link) -> Option<Link> {
        self.child(at, Left).some()
    }

    /// The root of the higher ranges of this subtree.
    pub(super) fn right(&self, at: Link) -> Option<Link> {
        self.child(at, Right).some()
    }

    /// The highest range; `None` if there is none.
    pub(super) fn last(&self) -> Option<Link> {
        self.extreme(self.root, Right)
    }

    /// The lowest range; `None` if there is none.
    pub(super) fn first(&self) -> Option<Link> {
        self.extreme(self.root, Left)
    }

    /// The next range below.
    pub(super) fn prev(&self, at: Link) -> Option<Link> {
        self.neighbour(at, Left)
    }

    /// The next range above.
    pub(super) fn next(&self, at: Link) -> Option<Link> {
        self.neighbour(at, Right)
    }

    /// The range that begins at `first`.
    pub(super) fn find(&self, first: IovaPage) -> Option<Link> {
        let mut at = self.root;
        while at != NIL {
            let here = self.node(at).range.first;
            if here == first {
                return Some(at);
            }
            at = self.child(at, if first < here { Left } else { Right });
        }
        None
    }

    /// The highest range that begins below `end`.
    pub(super) fn last_below(&self, end: IovaPage) -> Option<Link> {
        let (mut at, mut best) = (self.root, None);
        while at != NIL {
            let below = self.node(at).range.first < end;
            best = if below { Some(at) } else { best };
            at = self.child(at, if below { Right } else { Left });
        }
        best
    }

    /// The lowest range that begins at `first` or above.
    pub(super) fn first_from(&self, first: IovaPage) -> Option<Link> {
        match self.last_below(first) {
            Some(below) => self.next(below),
            None => self.first(),
        }
    }

    /// Some range that has a page in common with `range`, whose end must not wrap.
    pub(super) fn overlapping(&self, range: IovaRange) -> Option<Link> {
        let mut at = self.root;
        while at != NIL {
            let here = self.node(at).range;
            at = if range.end() <= here.first {
                self.child(at, Left)
            } else if here.end() <= range.first {
                self.child(at, Right)
            } else {
                return Some(at);
            };
        }
        None
    }

    /// Adds `range`, which overlaps no other and for which there is [room](Self::has_room).
    pub(super) fn insert(&mut self, range: IovaRange) -> Link {
        let (mut parent, mut side) = (NIL, Left);
        let mut below = self.root;
        while below != NIL {
            side = if range.first < self.node(below).range.first {
                Left
            } else {
                Right
            };
            parent = below;
            below = self.child(below, side);
        }
        let new = self.take_slot(Node {
            range,
            sum: A::of(range, None, None),
            parent,
            child: [NIL; 2],
            color: Red,
        });
        if parent == NIL {
            self.root = new;
        } else {
            self.node_mut(parent).child[side as usize] = new;
        }
        self.len += 1;
        self.sum_up_from(parent);
        self.mend_red(new);
        new
    }

    /// Removes the range at `gone`, which is in the tree.
    pub(super) fn remove(&mut self, gone: Link) {
        let [left, right] = self.node(gone).child;
        // `hole`: what comes up where a node leaves; it is one black node short if that node was
        // black
        let (hole, lost) = if left == NIL || right == NIL {
            let only = if left == NIL { right } else { left };
            self.replace(gone, only);
            (only, self.color(gone))
        } else {
            // the successor has no left child; it leaves its own place and takes over that of
            // `gone`
            let heir = self.extreme(right, Left).unwrap_or(right);
            let (orphan, lost) = (self.child(heir, Right), self.color(heir));
            if heir == right {
                self.node_mut(orphan).parent = heir;
            } else {
                self.replace(heir, orphan);
                self.node_mut(heir).child[Right as usize] = right;
                self.node_mut(right).parent = heir;
            }
            self.replace(gone, heir);
            self.node_mut(heir).child[Left as usize] = left;
            self.node_mut(left).parent = heir;
            self.paint(heir, self.color(gone));
            (orphan, lost)
        };
        self.sum_up_from(self.parent(hole));
        if lost == Black {
            self.mend_black(hole);
        }
        self.node_mut(NIL).parent = NIL;
        self.give_slot(gone);
        self.len -= 1;
    }

    /// `at` is red, and so may be its parent: recolour upwards, or turn once or twice.
    fn mend_red(&mut self, mut at: Link) {
        while self.color(self.parent(at)) == Red {
            let mut parent = self.parent(at);
            let grand = self.parent(parent);
            let side = self.side(parent);
            let uncle = self.child(grand, side.other());
            if self.color(uncle) == Red {
                self.paint(parent, Black);
                self.paint(uncle, Black);
                self.paint(grand, Red);
                at = grand;
                continue;
            }
            if self.side(at) != side {
                self.rotate(parent, side);
                (at, parent) = (parent, at);
            }
            self.paint(parent, Black);
            self.paint(grand, Red);
            self.rotate(grand, side.other());
        }
        self.paint(self.root, Black);
    }

    /// All ways through `at` are one black node short: paint it black, or take one
    /// from its sibling's side.
    fn mend_black(&mut self, mut at: Link) {
        while at != self.root && self.color(at) == Black {
            let parent = self.parent(at);
            // at most one child of `parent` is absent: the sibling's side has a black node to spare
            let side = self.side(at);
            let far = side.other();
            let mut sibling = self.child(parent, far);
            if self.color(sibling) == Red {
                self.paint(sibling, Black);
                self.paint(parent, Red);
                self.rotate(parent, side);
                sibling = self.child(parent, far);
            }
            let (near_nephew, far_nephew) = (self.child(sibling, side), self.child(sibling, far));
            if self.color(near_nephew) == Black && self.color(far_nephew) == Black {
                self.paint(sibling, Red);
                at = parent;
                continue;
            }
            if self.color(far_nephew) == Black {
                self.paint(near_nephew, Black);
                self.paint(sibling, Red);
                self.rotate(sibling, far);
                sibling = self.child(parent, far);
            }
            self.paint(sibling, self.color(parent));
            self.paint(parent, Black);
            self.paint(self.child(sibling, far), Black);
            self.rotate(parent, side);
            at = self.root;
        }
        self.paint(at, Black);
    }

    /// Turns `down` and its child on the other side so that `down` sinks towards `side`.
    fn rotate(&mut self, down: Link, side: Side) {
        let up = self.child(down, side.other());
        let between = self.child(up, side);
        self.node_mut(down).child[side.other() as usize] = between;
        if between != NIL {
            self.node_mut(between).parent = down;
        }
        self.replace(down, up);
        self.node_mut(up).child[side as usize] = down;
        self.node_mut(down).parent = up;
        if A::KEPT {
            self.node_mut(down).sum = self.summed(down);
            self.node_mut(up).sum = self.summed(up);
        }
    }

    /// What the node at `at` should know.
    fn summed(&self, at: Link) -> A {
        let below = |side| self.child(at, side).some().map(|at| self.sum(at));
        A::of(self.range(at), below(Left), below(Right))
    }

    /// Brings the summaries of `at` and of all above it up to date.
    fn sum_up_from(&mut self, mut at: Link) {
        while A::KEPT && at != NIL {
            self.node_mut(at).sum = self.summed(at);
            at = self.parent(at);
        }
    }

    /// Hangs `new` (which may be the sentinel) where `old` hangs.
    fn replace(&mut self, old: Link, new: Link) {
        let parent = self.parent(old);
        if parent == NIL {
            self.root = new;
        } else {
            let side = self.side(old);
            self.node_mut(parent).child[side as usize] = new;
        }
        self.node_mut(new).parent = parent;
    }

    fn extreme(&self, mut at: Link, side: Side) -> Option<Link> {
        while self.child(at, side) != NIL {
            at = self.child(at, side);
        }
        at.some()
    }

    fn neighbour(&self, mut at: Link, side: Side) -> Option<Link> {
        let below = self.child(at, side);
        if below != NIL {
            return self.extreme(below, side.other());
        }
        loop {
            let parent = self.parent(at);
            if parent == NIL || self.child(parent, side) != at {
                return parent.some();
            }
            at = parent;
        }
    }

    fn node(&self, at: Link) -> &Node<A> {
        &self.nodes[at.0 as usize]
    }
    fn node_mut(&mut self, at: Link) -> &mut Node<A> {
        &mut self.nodes[at.0 as usize]
    }
    fn parent(&self, at: Link) -> Link {
        self.node(at).parent
    }
    fn child(&self, at: Link, side: Side) -> Link {
        self.node(at).child[side as usize]
    }
    fn color(&self, at: Link) -> Color {
        self.node(at).color
    }
    fn paint(&mut self, at: Link, color: Color) {
        self.node_mut(at).color = color;
    }
    /// Which child of its parent `at` is.
    fn side(&self, at: Link) -> Side {
        if self.child(self.parent(at), Left) == at {
            Left
        } else {
            Right
        }
    }

    fn take_slot(&mut self, node: Node<A>) -> Link {
        if let Some(slot) = self.free.some() {
            self.free = self.child(slot, Left);
            *self.node_mut(slot) = node;
            return slot;
        }
        let slot = u32::try_from(self.nodes.len()).expect("below 2^32 ranges");
        self.nodes.push(node);
        Link(slot)
    }

    fn give_slot(&mut self, slot: Link) {
        self.node_mut(slot).child[Left as usize] = self.free;
        self.free = slot;
    }
}
