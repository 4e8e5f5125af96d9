// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How commands show what they found: as text, JSON, CSV, SVG and HTML.
//!
//! A [`Figure`] is a number with its unit and a [`Tag`] that says where it comes from; every output
//! shows the same text of it. This crate knows nothing of what is shown.
#![forbid(unsafe_code)]

mod figure;
pub mod html;
pub mod plot;
mod spread;
pub mod svg;
mod table;
mod text;

pub use figure::{Figure, Part, Sentence, Tag, Unit};
pub use spread::{Spread, median};
pub use table::{Cell, Table, columns};
pub use text::{grouped, printable, rounded, short, steers, wrapped};

/// A value as JSON, for people too, with a line feed at its end.
///
/// # Errors
///
/// That of `serde_json`, if the value cannot be told in JSON.
pub fn json(value: &impl serde::Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}
