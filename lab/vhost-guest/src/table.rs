// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Numbers of a line, and rows under each other.

/// The numbers in a line.
pub fn numbers(line: &str) -> Vec<u64> {
    let words = line.split(|letter: char| !letter.is_ascii_digit());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// The rows, the first column to the left and all others to the right.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a", "bcd"], ["efg", "h"]];
        let rows = rows.map(|row| row.map(String::from).to_vec());
        assert_eq!(table(&rows), "a    bcd\nefg    h\n");
    }
}
