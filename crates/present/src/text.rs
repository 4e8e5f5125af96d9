// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Numbers and names as text.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

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

/// Whether a character steers a terminal or the order of text instead of showing: controls, and
/// Unicode's format characters (category Cf) and separators of lines.
#[must_use]
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}')
}

/// A name from outside, safe on a terminal and at most `width` columns.
#[must_use]
pub fn printable(name: &str, width: usize) -> String {
    let clean: String = name
        .chars()
        .map(|c| if steers(c) { '?' } else { c })
        .collect();
    if clean.width() <= width {
        return clean;
    }
    let mut text = String::new();
    for c in clean.chars() {
        if text.width() + c.width().unwrap_or(0) + 2 > width {
            break;
        }
        text.push(c);
    }
    text.push_str("..");
    text
}

/// A name of at most `most` characters.
#[must_use]
pub fn short(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.into();
    }
    let kept: String = name.chars().take(most.saturating_sub(1)).collect();
    kept + "…"
}

/// A number to so many decimals, or a dash where there is none.
#[must_use]
pub fn rounded(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.digits$}"))
}

/// Words in lines of at most `width` columns, each ended: the first goes on at column `begun`, the
/// others begin with `indent` spaces. A word that is longer stands alone; spaces that do not break
/// are kept.
#[must_use]
pub fn wrapped(words: &str, width: usize, begun: usize, indent: usize) -> String {
    let (mut text, mut column) = (String::new(), begun);
    for (nth, word) in words.split_ascii_whitespace().enumerate() {
        if nth > 0 && column + 1 + word.width() > width {
            text += &format!("\n{:indent$}", "");
            column = indent;
        } else if nth > 0 {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += word.width();
    }
    text + "\n"
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
    fn words_go_on_in_the_next_line_where_they_would_not_fit() {
        assert_eq!(wrapped("one two  three", 9, 2, 3), "one two\n   three\n");
        assert_eq!(wrapped("one", 2, 0, 0), "one\n", "no shorter than a word");
        assert_eq!(wrapped("", 9, 2, 3), "\n");
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2J", 9), "a?[2J");
        assert_eq!(printable("a\u{202e}b\u{200d}", 9), "a?b?");
        assert_eq!(printable("abcdef", 4), "ab..");
        // two columns each
        assert_eq!(printable("日本語", 6), "日本語");
        assert_eq!(printable("日本語", 5), "日..");
        assert_eq!(short("abcdef", 4), "abc…");
    }
}
