// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What terminal and page say of a comparison in the same words.

use super::{Change, Comparison, DeviceChanges};
use ioatlas_present::{Tag, printable};

/// Columns of a device's name, twice where it has two.
const DEVICE: usize = 40;

impl Change {
    /// Where its numbers come from, if it has any.
    pub(in crate::report) fn tag(&self) -> Option<Tag> {
        let figure = self.change.or(self.before).or(self.after);
        figure.map(|figure| figure.tag)
    }

    /// Why it is not told, or which way is better.
    pub(in crate::report) fn note(&self) -> &'static str {
        match (self.untold, self.less_is_better) {
            (Some(why), _) => why,
            (None, true) => "less is better",
            (None, false) => "",
        }
    }
}

impl DeviceChanges {
    /// Its name, or both.
    pub(in crate::report) fn name(&self) -> String {
        let before = printable(&self.before, DEVICE);
        match self.before == self.after {
            true => before,
            false => format!("{before}, then {}", printable(&self.after, DEVICE)),
        }
    }
}

impl Comparison {
    /// The traces over their numbers, by name where that tells them apart in so many columns.
    pub(in crate::report) fn names(&self, width: usize) -> [String; 2] {
        let names = [&self.before, &self.after].map(|name| printable(name, width));
        match names[0] == names[1] {
            true => ["before", "after"].map(String::from),
            false => names,
        }
    }

    /// What stands below its numbers.
    pub(in crate::report) fn closing(&self) -> Vec<String> {
        let remarks = self.remarks.iter().map(|remark| (*remark).to_owned());
        self.unmatched().into_iter().chain(remarks).collect()
    }

    /// The devices that are in one trace only.
    pub(in crate::report) fn unmatched(&self) -> Vec<String> {
        const MOST: usize = 3;
        let list = |trace: &str, names: &[String]| {
            let shown = names.iter().take(MOST).map(|name| printable(name, 14));
            let shown = shown.collect::<Vec<_>>().join(", ");
            let more = match names.len().saturating_sub(MOST) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let list = format!("Only in {}: {shown}{more}.", printable(trace, 24));
            (!names.is_empty()).then_some(list)
        };
        let before = list(&self.before, &self.only_before);
        before
            .into_iter()
            .chain(list(&self.after, &self.only_after))
            .collect()
    }
}
