// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A case, what it saw, and what it should have seen.

use crate::{bench::*, item::Item, run::Run};
use ioatlas_viommu::config::UnitConfig;
use ioatlas_vtd::layout::AddressWidth;
use std::fmt;

/// One thing seen: on both units alike, and as the specification says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub what: String,
    pub got: String,
    pub want: String,
}

/// One unit does otherwise, and may, or does not model it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Differs {
    pub which: Which,
    /// Of the thing seen.
    pub what: &'static str,
    /// What this unit shows instead.
    pub got: &'static str,
    pub clause: &'static str,
    pub why: &'static str,
}

/// Cases that make sense on one unit only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Only {
    pub which: Which,
    pub clause: &'static str,
    pub why: &'static str,
}

type Body = Box<dyn Fn(&mut Run<'_>)>;

pub struct Case {
    pub name: String,
    pub width: AddressWidth,
    pub differs: Vec<Differs>,
    pub only: Option<Only>,
    /// How the software unit is made, where not like QEMU's.
    pub made: Option<fn(&mut UnitConfig)>,
    body: Body,
}

impl Case {
    /// A case for units that walk tables of 48 bits.
    pub fn new(name: impl Into<String>, body: impl Fn(&mut Run<'_>) + 'static) -> Self {
        Case {
            name: name.into(),
            width: AddressWidth::Bits48,
            differs: Vec::new(),
            only: None,
            made: None,
            body: Box::new(body),
        }
    }
    pub fn of_width(mut self, width: AddressWidth) -> Self {
        self.width = width;
        self
    }
    pub fn differs(mut self, differs: Differs) -> Self {
        self.differs.push(differs);
        self
    }
    pub fn only(mut self, only: Only) -> Self {
        self.only = Some(only);
        self
    }
    /// For a software unit of another make, for what QEMU's does not have.
    pub fn made(
        mut self,
        made: fn(&mut UnitConfig),
        clause: &'static str,
        why: &'static str,
    ) -> Self {
        self.made = Some(made);
        let which = Which::Software;
        self.only(Only { which, clause, why })
    }
    pub fn is_for(&self, which: Which) -> bool {
        self.only.is_none_or(|only| only.which == which)
    }

    /// Runs it, with one item spoilt if there is one.
    pub fn run(&self, bench: &mut dyn Bench, spoilt: Option<&'static Item>) -> Vec<Seen> {
        let mut run = Run::new(bench, spoilt);
        (self.body)(&mut run);
        run.end()
    }

    /// What this unit should have shown.
    fn due<'s>(&'s self, which: Which, seen: &'s Seen) -> &'s str {
        let differs = self.differs.iter();
        let mut of_it = differs.filter(|d| d.which == which && d.what == seen.what);
        of_it.next().map_or(&seen.want, |d| d.got)
    }

    /// Everything that is not as it should be on this unit.
    pub fn wrong(&self, which: Which, seen: &[Seen]) -> Vec<String> {
        let mut wrong: Vec<String> = seen
            .iter()
            .filter(|s| s.got != self.due(which, s))
            .map(|s| {
                let (due, what) = (self.due(which, s), &s.what);
                format!("{} on {which}: {what}: {}, want {due}", self.name, s.got)
            })
            .collect();
        let ours = self.differs.iter().filter(|d| d.which == which);
        for stale in ours.filter(|d| seen.iter().all(|s| s.what != d.what || s.got == s.want)) {
            let what = stale.what;
            wrong.push(format!(
                "{} on {which}: {what}: there is no difference any more",
                self.name
            ));
        }
        wrong
    }

    /// Where two units do not show the same, and the case does not say why.
    pub fn unlike(&self, first: &[Seen], second: &[Seen]) -> Vec<String> {
        let shape = |seen: &[Seen]| seen.iter().map(|s| s.what.clone()).collect::<Vec<_>>();
        if shape(first) != shape(second) {
            let (a, b) = (shape(first).join("; "), shape(second).join("; "));
            return vec![format!("{}: one unit shows {a}, the other {b}", self.name)];
        }
        let explained = |what: &str| self.differs.iter().any(|d| d.what == what);
        let pairs = first.iter().zip(second);
        pairs
            .filter(|(a, b)| a.got != b.got && !explained(&a.what))
            .map(|(a, b)| format!("{}: {}: {} and {}", self.name, a.what, a.got, b.got))
            .collect()
    }
}

impl fmt::Display for Only {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} only (VT-d {}: {})",
            self.which, self.clause, self.why
        )
    }
}

/// One line of the list of differences.
impl fmt::Display for Differs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (which, what, got) = (self.which, self.what, self.got);
        write!(
            f,
            "{which}: {what}: {got} (VT-d {}: {})",
            self.clause, self.why
        )
    }
}
