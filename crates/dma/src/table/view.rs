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
    /// As [`Table::config`].
    pub fn config(self) -> TableConfig {
        self.0.config()
    }
    /// As [`Table::root`].
    pub fn root(self) -> PhysPage {
        self.0.root()
    }
    /// As [`Table::walk`].
    pub fn walk(self, p: &P, page: IovaPage) -> Option<(PhysPage, Perm)> {
        self.0.walk(p, page)
    }
    /// As [`Table::show`].
    pub fn show(self, p: &'t P) -> impl fmt::Display + 't {
        self.0.show(p)
    }
    /// As [`Table::audit`].
    ///
    /// # Errors
    /// As there.
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
