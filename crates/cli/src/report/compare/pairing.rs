// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Which device of one trace is which of another.

use crate::record::Class;
use serde::Serialize;
use std::collections::HashMap;

/// Why two devices are taken for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Matched {
    /// They have one name, and are not known to be of two classes.
    Name,
    /// Each is the only one of its class in its trace.
    Class,
    /// Each is the only one in its trace, and they are not known to be of two classes.
    Only,
}

/// What tells a device.
pub(super) trait Named {
    fn name(&self) -> &str;
    fn class(&self) -> Option<Class>;
}

/// The devices of two traces: those in both, and the names of those in one.
pub(super) struct Pairing<'a, D> {
    pub pairs: Vec<(&'a D, &'a D, Matched)>,
    pub only_before: Vec<String>,
    pub only_after: Vec<String>,
}

impl<'a, D: Named> Pairing<'a, D> {
    pub fn of(before: &[&'a D], after: &[&'a D]) -> Self {
        // names are cut, so two may be alike
        let mut named: HashMap<(&str, Option<Class>), Vec<usize>> = HashMap::new();
        for (at, device) in after.iter().enumerate().rev() {
            let key = (device.name(), device.class());
            named.entry(key).or_default().push(at);
        }
        let mut others: Vec<Option<(usize, Matched)>> = Vec::new();
        for device in before {
            let class = device.class();
            let classes = [class, None].into_iter().chain(Class::ALL.map(Some));
            let mut classes = classes.filter(|other| may_be_one(class, *other));
            let at = classes.find_map(|class| named.get_mut(&(device.name(), class))?.pop());
            others.push(at.map(|at| (at, Matched::Name)));
        }
        let mut taken = vec![false; after.len()];
        for (at, _) in others.iter().flatten() {
            taken[*at] = true;
        }
        for (at, other, how) in alike(before, after) {
            // what has its own name on the other side keeps to it
            if others[at].is_none() && !taken[other] {
                others[at] = Some((other, how));
                taken[other] = true;
            }
        }
        let (mut pairs, mut only_before) = (Vec::new(), Vec::new());
        for (device, other) in before.iter().zip(others) {
            match other {
                Some((at, how)) => pairs.push((*device, after[at], how)),
                None => only_before.push(device.name().to_owned()),
            }
        }
        let left = after.iter().zip(taken).filter(|(_, taken)| !taken);
        Self {
            pairs,
            only_before,
            only_after: left.map(|(device, _)| device.name().to_owned()).collect(),
        }
    }
}

/// Whether devices of these classes, as far as they are known, may be one.
fn may_be_one(one: Option<Class>, other: Option<Class>) -> bool {
    one.is_none() || other.is_none() || one == other
}

/// Devices that must be one, whatever they are called.
fn alike<D: Named>(before: &[&D], after: &[&D]) -> Vec<(usize, usize, Matched)> {
    let mut found = Vec::new();
    let mut classes: Vec<Class> = Vec::new();
    for class in before.iter().filter_map(|device| device.class()) {
        if !classes.contains(&class) {
            classes.push(class);
        }
    }
    for class in classes {
        let only = |devices: &[&D]| {
            let of_class = |at: &usize| devices[*at].class() == Some(class);
            let mut of_class = (0..devices.len()).filter(of_class);
            of_class.next().filter(|_| of_class.next().is_none())
        };
        if let (Some(one), Some(other)) = (only(before), only(after)) {
            found.push((one, other, Matched::Class));
        }
    }
    if let ([one], [other]) = (before, after)
        && may_be_one(one.class(), other.class())
    {
        found.push((0, 0, Matched::Only));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Device(&'static str, Option<Class>);

    impl Named for Device {
        fn name(&self) -> &str {
            self.0
        }
        fn class(&self) -> Option<Class> {
            self.1
        }
    }

    const NIC: Option<Class> = Some(Class::Network);
    const DISK: Option<Class> = Some(Class::Disk);

    /// Pairs as `before after`, then what is left of each.
    fn paired(before: &[Device], after: &[Device]) -> (Vec<String>, String) {
        let (before, after): (Vec<_>, Vec<_>) = (before.iter().collect(), after.iter().collect());
        let found = Pairing::of(&before, &after);
        let pairs = found.pairs.iter();
        let pairs = pairs.map(|(one, other, how)| format!("{} {} {how:?}", one.0, other.0));
        let left = [found.only_before.join(" "), found.only_after.join(" ")].join("; ");
        (pairs.collect(), left)
    }

    #[test]
    fn devices_are_matched_by_name_then_by_class_then_as_the_only_ones() {
        let (device, pairs) = (Device, paired);
        assert_eq!(
            pairs(
                &[device("a", None), device("b", None)],
                &[device("b", None), device("c", None)]
            ),
            (vec!["b b Name".to_owned()], "a; c".to_owned())
        );
        assert_eq!(
            pairs(
                &[device("a", NIC), device("b", DISK)],
                &[device("c", DISK), device("d", NIC)]
            ),
            (vec!["a d Class".into(), "b c Class".into()], "; ".into())
        );
        assert_eq!(
            pairs(&[device("a", NIC)], &[device("c", NIC), device("d", NIC)]),
            (vec![], "a; c d".into())
        );
        assert_eq!(
            pairs(&[device("a", None)], &[device("c", NIC)]),
            (vec!["a c Only".into()], "; ".into())
        );
        assert_eq!(
            pairs(&[device("a", DISK)], &[device("c", NIC)]),
            (vec![], "a; c".into())
        );
        // one that has its name keeps to it
        assert_eq!(
            pairs(&[device("a", NIC), device("b", None)], &[device("b", NIC)]),
            (vec!["b b Name".into()], "a; ".into())
        );
        // a name is not enough where the classes say otherwise
        assert_eq!(
            pairs(&[device("a", NIC)], &[device("a", DISK)]),
            (vec![], "a; a".into())
        );
        assert_eq!(
            pairs(
                &[device("a", NIC), device("b", None)],
                &[device("a", DISK), device("b", NIC), device("a", None)]
            ),
            (vec!["a a Name".into(), "b b Name".into()], "; a".into())
        );
        assert_eq!(pairs(&[], &[]), (vec![], "; ".into()));
    }
}
