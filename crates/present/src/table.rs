// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Tables: as CSV and, since they serialize, JSON.

use crate::figure::Tag;
use serde::{Serialize, Serializer};

/// A cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Words, and numbers as they are to be shown.
    Words(String),
    /// A number.
    Number(f64),
}

impl Cell {
    /// Of a count.
    #[must_use]
    pub fn count(count: u64) -> Self {
        Cell::Number(count as f64)
    }

    /// As shown: whole numbers whole, others to two decimals.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Cell::Words(words) => words.clone(),
            Cell::Number(number) if number.fract() == 0.0 => format!("{number:.0}"),
            Cell::Number(number) => format!("{number:.2}"),
        }
    }
}

impl From<&str> for Cell {
    fn from(words: &str) -> Self {
        Cell::Words(words.into())
    }
}

impl From<String> for Cell {
    fn from(words: String) -> Self {
        Cell::Words(words)
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cell::Words(words) => serializer.serialize_str(words),
            Cell::Number(number) => serializer.serialize_f64(*number),
        }
    }
}

/// A heading and rows of as many cells.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Table {
    /// The heading.
    pub columns: Vec<String>,
    /// Where the numbers of each column come from; none for words.
    pub tags: Vec<Option<Tag>>,
    /// The rows.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table of columns.
    #[must_use]
    pub fn of(
        columns: impl IntoIterator<Item = String>,
        rows: impl IntoIterator<Item = Vec<Cell>>,
    ) -> Self {
        Table::tagged(columns.into_iter().map(|name| (name, None)), rows)
    }

    /// A table of columns and where their numbers come from.
    #[must_use]
    pub fn tagged<N: Into<String>>(
        columns: impl IntoIterator<Item = (N, Option<Tag>)>,
        rows: impl IntoIterator<Item = Vec<Cell>>,
    ) -> Self {
        let columns = columns.into_iter().map(|(name, tag)| (name.into(), tag));
        let (columns, tags) = columns.unzip();
        Table {
            columns,
            tags,
            rows: rows.into_iter().collect(),
        }
    }

    /// The table as RFC 4180 has it, but for lines, which end in a line feed.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = csv_line(self.columns.iter().cloned());
        for row in &self.rows {
            text += &csv_line(row.iter().map(Cell::text));
        }
        text
    }
}

fn csv_line(cells: impl Iterator<Item = String>) -> String {
    let quoted = |cell: String| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    };
    cells.map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_as_what_they_are() {
        assert_eq!(Cell::count(12_345).text(), "12345");
        assert_eq!(Cell::Number(1.0 / 3.0).text(), "0.33");
        let json = serde_json::to_string(&[Cell::from("a"), Cell::Number(0.5)]).unwrap();
        assert_eq!(json, "[\"a\",0.5]");
    }

    #[test]
    fn cells_with_commas_and_quotes_are_quoted() {
        let row = vec![Cell::from("say \"x\""), Cell::count(7)];
        let table = Table::of(["a,b", "c"].map(String::from), [row]);
        assert_eq!(table.csv(), "\"a,b\",c\n\"say \"\"x\"\"\",7\n");
    }
}
