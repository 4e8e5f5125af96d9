// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Pages that need no network and no other file, and what stands on them.

use crate::figure::{Figure, Part, Sentence, Tag};
use crate::text::steers;

/// A page: its title, what it has of style beyond that of all pages, and what it shows.
#[must_use]
pub fn document(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{title}</title>\n<style>\n{}{style}</style></head>\n<body>\n{body}\n</body></html>\n",
        include_str!("page.css"),
    )
}

/// Text that stands for itself in HTML and in attribute values.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if steers(c) => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A tag, as a reader sees it.
#[must_use]
pub fn chip(tag: Tag) -> String {
    format!("<small class=\"tag {0}\">{0}</small>", tag.name())
}

/// A number; the script sorts by `value`, and tests compare it with the model.
#[must_use]
pub fn number(figure: &Figure) -> String {
    let tag = figure.tag.name();
    let (value, text) = (figure.value, figure.text());
    format!("<data class=\"{tag}\" value=\"{value}\" title=\"{tag}\">{text}</data>")
}

/// A number with its unit.
#[must_use]
pub fn quantity(figure: &Figure) -> String {
    let unit = figure.with_unit();
    let unit = unit.strip_prefix(&figure.text()).unwrap_or_default();
    number(figure) + unit
}

/// A sentence: its words escaped, each number as by [`quantity`].
#[must_use]
pub fn sentence(sentence: &Sentence) -> String {
    let part = |part: &Part| match part {
        Part::Words(words) => escaped(words),
        Part::Number(figure) => quantity(figure),
    };
    sentence.0.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_outside_are_text() {
        assert_eq!(
            escaped("<script>'\"&\u{1b}"),
            "&lt;script&gt;&#39;&quot;&amp;\u{fffd}"
        );
    }
}
