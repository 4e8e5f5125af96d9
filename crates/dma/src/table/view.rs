// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A table to be looked at: what a live domain may show of its own.

use super::*;
use alloc::string::String;
use core::fmt;

/// What can be seen of a [`Table`], and no way to change it.
pub struct TableView<'t, P: Platform, F: Format>(&'t Table<P, F>);

impl<P: Platform, F: Format> Clone for TableView<'_, P, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform, F: Format> Copy for TableView<'_, P, F> {}

impl<'t, P: Platform, F: Format> TableView<'t, P, F> {
    /// What was decided for it: see [`Table::config`].
    pub fn config(self) -> TableConfig {
        self.0.config()
    }
    /// The root's physical page, as the hardware is told.
    pub fn root(self) -> PhysPage {
        self.0.root()
    }
    /// Looks `page` up as hardware would: see [`Table::walk`].
    pub fn walk(self, p: &P, page: IovaPage) -> Option<(PhysPage, Perm)> {
        self.0.walk(p, page)
    }
    /// Prints the mappings, one leaf a line.
    pub fn show(self, p: &'t P) -> impl fmt::Display + 't {
        self.0.show(p)
    }
    /// Checks every entry: see [`Table::audit`].
    ///
    /// # Errors
    /// A sentence that names the first entry that does not fit.
    pub fn audit(self, p: &P, shared: Option<IovaRange>) -> Result<Census, String> {
        self.0.audit(p, shared)
    }
}

impl<P: Platform, F: Format> Table<P, F> {
    /// To be looked at.
    pub fn view(&self) -> TableView<'_, P, F> {
        TableView(self)
    }
}
