// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A fully associative cache that evicts what was used least recently. Every operation but the
//! sweeps is O(1).
//!
//! A map from key to slot, and a doubly linked list through the slots in order of use: `newest` to
//! `oldest`. Sweeps go by slot, not by hash, so that what they do depends on nothing random.

use core::hash::Hash;
use std::collections::HashMap;

const NIL: usize = usize::MAX;

struct Node<K, V> {
    key: K,
    value: V,
    newer: usize,
    older: usize,
}

/// A cache of at most `capacity` entries. Capacity 0 holds nothing.
pub(crate) struct Lru<K, V> {
    slot_of: HashMap<K, usize>,
    slots: Vec<Option<Node<K, V>>>,
    free: Vec<usize>,
    newest: usize,
    oldest: usize,
    capacity: usize,
}

impl<K: Copy + Eq + Hash, V: Copy> Lru<K, V> {
    pub(crate) fn new(capacity: usize) -> Self {
        Lru {
            slot_of: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            newest: NIL,
            oldest: NIL,
            capacity,
        }
    }
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }
    pub(crate) fn len(&self) -> usize {
        self.slot_of.len()
    }
    /// Looks up, as a use.
    pub(crate) fn get(&mut self, key: &K) -> Option<V> {
        let slot = *self.slot_of.get(key)?;
        self.unlink(slot);
        self.link_newest(slot);
        self.slots[slot].as_ref().map(|n| n.value)
    }
    /// Whether it is there; not a use.
    pub(crate) fn peek(&self, key: &K) -> bool {
        self.slot_of.contains_key(key)
    }
    /// Enters `key` as the newest; says how many entries that displaced (0 or 1).
    pub(crate) fn insert(&mut self, key: K, value: V) -> u64 {
        if self.capacity == 0 {
            return 0;
        }
        let replaced = self.remove(&key);
        let mut displaced = 0;
        if replaced.is_none() && self.len() == self.capacity {
            self.take(self.oldest);
            displaced = 1;
        }
        let node = Some(Node {
            key,
            value,
            newer: NIL,
            older: NIL,
        });
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = node;
                slot
            }
            None => {
                self.slots.push(node);
                self.slots.len() - 1
            }
        };
        self.slot_of.insert(key, slot);
        self.link_newest(slot);
        displaced
    }
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let slot = *self.slot_of.get(key)?;
        self.take(slot)
    }
    /// Removes what `condemned` says; returns how many.
    pub(crate) fn sweep(&mut self, mut condemned: impl FnMut(&K, &V) -> bool) -> u64 {
        let mut removed = 0;
        for slot in 0..self.slots.len() {
            let hit = self.slots[slot]
                .as_ref()
                .is_some_and(|n| condemned(&n.key, &n.value));
            if hit {
                self.take(slot);
                removed += 1;
            }
        }
        removed
    }
    /// Evicts what lies in the slot that `random` picks, if anything; returns how many (0 or 1).
    pub(crate) fn evict(&mut self, random: u64) -> u64 {
        match self.slots.len() as u64 {
            0 => 0,
            n => u64::from(self.take((random % n) as usize).is_some()),
        }
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.slots.iter().flatten().map(|n| (&n.key, &n.value))
    }

    /// Checks that map, list and free slots agree.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let mut seen = 0;
        let (mut at, mut newer) = (self.newest, NIL);
        while at != NIL {
            let node = self.slots[at]
                .as_ref()
                .ok_or(format!("slot {at} is listed but empty"))?;
            if node.newer != newer || self.slot_of.get(&node.key) != Some(&at) {
                return Err(format!("slot {at} is linked or mapped wrongly"));
            }
            seen += 1;
            (newer, at) = (at, node.older);
        }
        let (mapped, used) = (self.slot_of.len(), self.slots.len() - self.free.len());
        if self.oldest != newer || seen != mapped || seen != used || seen > self.capacity {
            let capacity = self.capacity;
            return Err(format!(
                "{seen} listed, {mapped} mapped, {used} used of {capacity}"
            ));
        }
        Ok(())
    }

    fn take(&mut self, slot: usize) -> Option<V> {
        self.slots[slot].as_ref()?;
        self.unlink(slot);
        let node = self.slots[slot].take()?;
        self.slot_of.remove(&node.key);
        self.free.push(slot);
        Some(node.value)
    }
    fn unlink(&mut self, slot: usize) {
        let Some(node) = &self.slots[slot] else {
            return;
        };
        let (newer, older) = (node.newer, node.older);
        match self.node(newer) {
            Some(n) => n.older = older,
            None => self.newest = older,
        }
        match self.node(older) {
            Some(n) => n.newer = newer,
            None => self.oldest = newer,
        }
    }
    fn link_newest(&mut self, slot: usize) {
        let second = self.newest;
        if let Some(node) = self.node(slot) {
            (node.newer, node.older) = (NIL, second);
        }
        match self.node(second) {
            Some(n) => n.newer = slot,
            None => self.oldest = slot,
        }
        self.newest = slot;
    }
    fn node(&mut self, slot: usize) -> Option<&mut Node<K, V>> {
        self.slots.get_mut(slot)?.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Get(u8),
        Insert(u8, u16),
        Remove(u8),
        SweepOdd,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0..12u8).prop_map(Op::Get),
            4 => (0..12u8, any::<u16>()).prop_map(|(k, v)| Op::Insert(k, v)),
            1 => (0..12u8).prop_map(Op::Remove),
            1 => Just(Op::SweepOdd),
        ]
    }

    proptest! {
        /// Against a vector kept in order of use.
        #[test]
        fn behaves_as_a_list_in_order_of_use(capacity in 0..6usize, ops in prop::collection::vec(op(), 0..80)) {
            let mut lru = Lru::new(capacity);
            let mut model: Vec<(u8, u16)> = Vec::new(); // oldest first
            for op in ops {
                match op {
                    Op::Get(k) => {
                        let at = model.iter().position(|e| e.0 == k);
                        let want = at.map(|i| { let e = model.remove(i); model.push(e); e.1 });
                        prop_assert_eq!(lru.get(&k), want);
                    }
                    Op::Insert(k, v) => {
                        model.retain(|e| e.0 != k);
                        model.push((k, v));
                        let displaced = model.len().saturating_sub(capacity);
                        model.drain(..displaced);
                        prop_assert_eq!(lru.insert(k, v), if capacity == 0 { 0 } else { displaced as u64 });
                    }
                    Op::Remove(k) => {
                        let want = model.iter().find(|e| e.0 == k).map(|e| e.1);
                        model.retain(|e| e.0 != k);
                        prop_assert_eq!(lru.remove(&k), want);
                    }
                    Op::SweepOdd => {
                        let before = model.len();
                        model.retain(|e| e.0 % 2 == 0);
                        prop_assert_eq!(lru.sweep(|k, _| k % 2 == 1), (before - model.len()) as u64);
                    }
                }
                prop_assert_eq!(lru.audit(), Ok(()));
                let mut held: Vec<_> = lru.iter().map(|(k, v)| (*k, *v)).collect();
                let mut want = model.clone();
                held.sort();
                want.sort();
                prop_assert_eq!(held, want);
            }
        }
    }

    #[test]
    fn random_eviction_removes_one_and_keeps_order() {
        let mut lru = Lru::new(3);
        for k in 0..3u8 {
            lru.insert(k, k);
        }
        assert_eq!(lru.evict(4), 1, "slot 1");
        assert_eq!(lru.evict(4), 0, "empty now");
        assert_eq!(
            (lru.get(&0), lru.get(&1), lru.get(&2)),
            (Some(0), None, Some(2))
        );
        assert_eq!(lru.audit(), Ok(()));
    }
}
