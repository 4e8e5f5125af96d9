// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Numbers and tables as text.

/// An integer with separators: `35,959`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A name from outside, safe on a terminal and at most `width` characters.
#[must_use]
pub fn printable(name: &str, width: usize) -> String {
    let clean: Vec<char> = name
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    if clean.len() <= width {
        return clean.into_iter().collect();
    }
    let mut text: String = clean.iter().take(width.saturating_sub(2)).collect();
    text.push_str("..");
    text
}

/// Which side of a column its cells stand at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Lays rows out in columns, `gap` spaces apart; the first row is usually a heading.
#[must_use]
pub fn table(align: &[Align], gap: usize, rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|c| c.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..align.len())
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate().take(align.len()) {
            if column > 0 {
                line.push_str(&" ".repeat(gap));
            }
            let width = widths[column];
            line.push_str(&match align[column] {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            });
        }
        line.truncate(line.trim_end().len());
        line
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_stand_before_every_third_digit() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1234567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2J", 9), "a?[2J");
        assert_eq!(printable("abcdef", 4), "ab..");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            vec!["name".into(), "n".into()],
            vec!["x".into(), "100".into()],
        ];
        assert_eq!(
            table(&[Align::Left, Align::Right], 2, &rows),
            ["name    n", "x     100"]
        );
    }
}
