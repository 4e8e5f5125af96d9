// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Tables: as text, CSV, HTML and, since they serialize, JSON.

use crate::figure::Tag;
use crate::html::{chip, escaped};
use serde::{Serialize, Serializer};
use unicode_width::UnicodeWidthStr as _;

/// A cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Words, and numbers as they are to be shown.
    Words(String),
    /// A number, which [`Cell::text`] shows whole or to two decimals.
    Number(f64),
}

impl Cell {
    /// A cell with a count, exact up to 2^53.
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
    /// The heading: names of the columns.
    pub columns: Vec<String>,
    /// Where the numbers of each column come from; none for words.
    pub tags: Vec<Option<Tag>>,
    /// The rows, from the top.
    pub rows: Vec<Vec<Cell>>,
    /// How [`columns`] lays it out.
    #[serde(skip)]
    sides: &'static str,
}

impl Table {
    /// A table without rows yet.
    #[must_use]
    pub fn new<const N: usize>(heading: [&str; N]) -> Self {
        Table {
            columns: heading.map(String::from).into(),
            ..Table::default()
        }
    }

    /// The table, to be laid out as text with the `sides` that [`columns`] takes.
    #[must_use]
    pub fn aligned(self, sides: &'static str) -> Self {
        Table { sides, ..self }
    }

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
            ..Table::default()
        }
    }

    /// Adds a row at the end; the number of its cells is not checked.
    pub fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The lines of the table as text, heading first.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let rows = self.rows.iter();
        let rows = rows.map(|row| row.iter().map(Cell::text).collect());
        let all: Vec<Vec<String>> = [self.columns.clone()].into_iter().chain(rows).collect();
        columns(self.sides, 2, &all)
    }

    /// The table as text, each line after `indent`.
    #[must_use]
    pub fn text(&self, indent: &str) -> String {
        let lines = self.lines();
        lines
            .iter()
            .map(|line| format!("{indent}{line}\n"))
            .collect()
    }

    /// The table as text for a terminal of so many columns: as it is where it fits, else without
    /// the columns that have nothing in any row, else a card for each row. Headings, and what cards
    /// are about, are shown as `heading` shows them.
    #[must_use]
    pub fn fitted(
        &self,
        indent: &str,
        width: Option<usize>,
        heading: impl Fn(&str) -> String,
    ) -> String {
        let width = width.unwrap_or(usize::MAX);
        let fits = |table: &Self| {
            let lines = table.lines();
            lines
                .iter()
                .all(|line| indent.width() + line.width() <= width)
        };
        let headed = |table: &Self| {
            let lines = table.lines().into_iter().enumerate();
            let lines = lines.map(|(at, line)| match at {
                0 => format!("{indent}{}\n", heading(&line)),
                _ => format!("{indent}{line}\n"),
            });
            lines.collect::<String>()
        };
        if fits(self) {
            return headed(self);
        }
        let (table, nothing) = self.without_empty();
        let text = match fits(&table) {
            true => headed(&table),
            false => table.cards(indent, heading),
        };
        text + &wrapped("nothing in: ", &nothing, indent, width)
    }

    /// Without columns that have nothing in any row, and the names of these.
    fn without_empty(&self) -> (Self, Vec<String>) {
        let is_nothing = |cell: &Cell| matches!(cell.text().as_str(), "" | "-" | "0");
        let is_empty = |column: usize| {
            let mut cells = self.rows.iter().filter_map(|row| row.get(column));
            column >= self.titles() && cells.all(is_nothing)
        };
        let (empty, kept): (Vec<usize>, Vec<usize>) =
            (0..self.columns.len()).partition(|column| is_empty(*column));
        let kept_of = |row: &Vec<Cell>| {
            let cells = kept.iter().filter_map(|column| row.get(*column));
            cells.cloned().collect()
        };
        let name = |column: &usize| self.columns[*column].clone();
        let table = Table {
            columns: kept.iter().map(name).collect(),
            tags: Vec::new(),
            rows: self.rows.iter().map(kept_of).collect(),
            sides: self.sides,
        };
        (table, empty.iter().map(name).collect())
    }

    /// Columns at the left that say what a row is about.
    fn titles(&self) -> usize {
        self.sides.chars().take_while(|side| *side == 'l').count()
    }

    /// A block for each row: what it is about, then a line for each number.
    fn cards(&self, indent: &str, heading: impl Fn(&str) -> String) -> String {
        let titles = self.titles();
        let card = |row: &Vec<Cell>| {
            let texts: Vec<String> = row.iter().map(Cell::text).collect();
            let names = self.columns.iter().zip(&texts).skip(titles);
            let pairs = names.map(|(name, text)| vec![name.clone(), text.clone()]);
            let lines = columns("lr", 2, &pairs.collect::<Vec<_>>());
            let lines = lines.iter().map(|line| format!("{indent}  {line}\n"));
            let title = texts[..titles.min(texts.len())].join("  ");
            format!("{indent}{}\n{}", heading(&title), lines.collect::<String>())
        };
        self.rows.iter().map(card).collect()
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

    /// The table as HTML, which scrolls where it is too wide.
    #[must_use]
    pub fn html(&self) -> String {
        let tags = self.tags.iter().copied().chain(std::iter::repeat(None));
        let heading: String = self
            .columns
            .iter()
            .zip(tags)
            .map(|(name, tag)| {
                let tag = tag.map(chip).unwrap_or_default();
                format!("<th>{}{tag}</th>", escaped(name))
            })
            .collect();
        let cell = |cell: &Cell| {
            let class = match cell {
                Cell::Words(_) => "",
                Cell::Number(_) => " class=\"r\"",
            };
            format!("<td{class}>{}</td>", escaped(&cell.text()))
        };
        let row = |row: &Vec<Cell>| {
            let cells: String = row.iter().map(cell).collect();
            format!("<tr>{cells}</tr>")
        };
        let rows: String = self.rows.iter().map(row).collect();
        format!(
            "<div class=\"scroll\"><table><thead><tr>{heading}</tr></thead><tbody>{rows}</tbody></table></div>"
        )
    }
}

/// Names behind `begin`, in lines of a width; nothing if there are none.
fn wrapped(begin: &str, names: &[String], indent: &str, width: usize) -> String {
    let mut text = String::new();
    let mut line = format!("{indent}{begin}");
    for (at, name) in names.iter().enumerate() {
        let end = if at + 1 < names.len() { ", " } else { "" };
        if at > 0 && line.width() + name.width() + end.trim_end().len() > width {
            text = text + line.trim_end() + "\n";
            line = format!("{indent}  ");
        }
        line = line + name + end;
    }
    match names {
        [] => text,
        _ => text + &line + "\n",
    }
}

fn csv_line(cells: impl Iterator<Item = String>) -> String {
    let quoted = |cell: String| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    };
    cells.map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

/// Lays rows out in columns, `gap` spaces apart. `sides` has a letter a column: `l` for words,
/// which stand at its left, `r` for numbers, at its right. The last letter is that of all
/// columns after it, too.
#[must_use]
pub fn columns(sides: &str, gap: usize, rows: &[Vec<String>]) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.width()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(widest).collect();
    let last = sides.chars().last().unwrap_or('l');
    let line = |row: &Vec<String>| {
        let sides = sides.chars().chain(std::iter::repeat(last));
        let cells = row.iter().zip(&widths).zip(sides);
        let cells = cells.map(|((cell, width), side)| {
            let pad = " ".repeat(width - cell.width());
            match side {
                'r' => format!("{pad}{cell}"),
                _ => format!("{cell}{pad}"),
            }
        });
        let mut line = cells.collect::<Vec<_>>().join(&" ".repeat(gap));
        line.truncate(line.trim_end().len());
        line
    };
    rows.iter().map(line).collect()
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
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["name", "n", "m"]).aligned("lr");
        table.row(["x", "100", "7"]);
        assert_eq!(table.text("> "), "> name    n  m\n> x     100  7\n");
    }

    #[test]
    fn what_is_wider_than_the_terminal_becomes_cards() {
        let mut table =
            Table::new(["device", "maps", "faults", "unmapped twice", "peak"]).aligned("lr");
        table.row(["00:04.0", "3,438", "0", "0", "415"]);
        table.row(["00:05.0", "12", "0", "0", "-"]);
        let whole = table.text("  ");
        let fitted = |width| table.fitted("  ", width, str::to_owned);
        assert_eq!(fitted(None), whole);
        assert_eq!(fitted(Some(46)), whole);
        let narrower = "  device    maps  peak\n  00:04.0  3,438   415\n  00:05.0     12     -\n";
        let nothing = "  nothing in: faults, unmapped twice\n";
        assert_eq!(fitted(Some(45)), narrower.to_owned() + nothing);
        let cards =
            "  00:04.0\n    maps  3,438\n    peak    415\n  00:05.0\n    maps  12\n    peak   -\n";
        let nothing = "  nothing in: faults,\n    unmapped twice\n";
        assert_eq!(fitted(Some(21)), cards.to_owned() + nothing);
        let marked = table.fitted("", Some(19), |heading| format!("[{heading}]"));
        assert!(marked.starts_with("[00:04.0]\n  maps  3,438\n"), "{marked}");
    }

    #[test]
    fn cells_with_commas_and_quotes_are_quoted() {
        let row = vec![Cell::from("say \"x\""), Cell::count(7)];
        let table = Table::of(["a,b", "c"].map(String::from), [row]);
        assert_eq!(table.csv(), "\"a,b\",c\n\"say \"\"x\"\"\",7\n");
    }

    #[test]
    fn a_page_has_names_as_text_and_numbers_with_their_source() {
        let row = vec![Cell::from("x"), Cell::count(7)];
        let table = Table::tagged([("a<b", None), ("c", Some(Tag::Counted))], [row]);
        let html = table.html();
        assert!(html.contains("<th>a&lt;b</th>"), "{html}");
        assert!(
            html.contains("counted</small></th>") && html.contains("<td class=\"r\">7</td>"),
            "{html}"
        );
    }
}
