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

/// A sentence that stands where numbers are `usual`, or of any kind: those that are not have their
/// tags, at the end where all share one.
#[must_use]
pub fn marked(says: &Sentence, usual: Option<Tag>) -> String {
    let mark = |tag: Tag| match Some(tag) == usual {
        true => String::new(),
        false => format!(" {}", chip(tag)),
    };
    let mut tags = says.0.iter().filter_map(|part| match part {
        Part::Number(figure) => Some(figure.tag),
        Part::Words(_) => None,
    });
    let shared = tags.next().filter(|first| tags.all(|tag| tag == *first));
    if let Some(tag) = shared {
        return sentence(says) + &mark(tag);
    }
    let part = |part: &Part| match part {
        Part::Number(figure) => quantity(figure) + &mark(figure.tag),
        Part::Words(words) => escaped(words),
    };
    says.0.iter().map(part).collect()
}

/// A column of a [`wide_table`].
#[derive(Clone, Debug)]
pub struct Column {
    name: String,
    tag: Option<Tag>,
    is_of_numbers: bool,
}

impl Column {
    /// A column of words.
    #[must_use]
    pub fn words(name: &str) -> Self {
        Column {
            name: name.into(),
            tag: None,
            is_of_numbers: false,
        }
    }

    /// A column of numbers.
    #[must_use]
    pub fn numbers(name: &str) -> Self {
        Column {
            is_of_numbers: true,
            ..Column::words(name)
        }
    }

    /// The column, of numbers that are not as usual where the table stands.
    #[must_use]
    pub fn of(self, tag: Tag) -> Self {
        Column {
            tag: Some(tag),
            ..self
        }
    }
}

/// Whether a reader can sort a table, with the script that does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As written.
    Fixed,
    /// By any column.
    Sortable,
}

/// A table of several columns. On paper and on narrow screens each row is a card, which has the
/// names of columns from the style of the table. `rows` are HTML.
#[must_use]
pub fn wide_table(columns: &[Column], order: Order, rows: &str) -> String {
    let (mut headings, mut names) = (String::new(), String::new());
    for (number, column) in (1..).zip(columns) {
        let tag = column.tag.map(|tag| format!(" {}", chip(tag)));
        let tag = tag.unwrap_or_default();
        let class = if column.is_of_numbers {
            " class=\"r\""
        } else {
            ""
        };
        let name = escaped(&column.name);
        headings += &match order {
            Order::Fixed => format!("<th{class}>{name}{tag}</th>"),
            Order::Sortable => {
                format!("<th{class} aria-sort=\"none\"><button>{name}</button>{tag}</th>")
            }
        };
        let kind = column.tag.map(|tag| format!(" ({})", tag.name()));
        let label = column.name.clone() + &kind.unwrap_or_default();
        // a string of the style sheet, within an attribute
        let label = label.replace('\\', "\\\\").replace('"', "\\\"");
        names += &format!("--c{number}:{};", escaped(&format!("\"{label}\"")));
    }
    let class = match order {
        Order::Fixed => "wide",
        Order::Sortable => "wide sortable",
    };
    format!(
        "<div class=\"scroll\"><table class=\"{class}\" style=\"{names}\"><thead><tr>{headings}</tr></thead>\
         <tbody>{rows}</tbody></table></div>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Unit;

    #[test]
    fn only_what_is_not_usual_is_marked() {
        let counted = Figure::counted(7.0, Unit::Count);
        let assumed = Figure::assumed(8.0, Unit::Count);
        let tags = |says: Sentence, usual: Option<Tag>| {
            let html = marked(&says, usual);
            let found = [Tag::Counted, Tag::Assumed].map(|tag| html.matches(&chip(tag)).count());
            (found, html.ends_with("</small>"))
        };
        let alike = || crate::sentence![counted, " a ", counted, " b"];
        let others = || crate::sentence![assumed, " a ", assumed, " b"];
        let mixed = || crate::sentence![counted, " a ", assumed, " b"];
        let usual = Some(Tag::Counted);
        assert_eq!(tags(alike(), usual), ([0, 0], false));
        assert_eq!(tags(others(), usual), ([0, 1], true));
        assert_eq!(tags(mixed(), usual), ([0, 1], false));
        assert_eq!(tags(crate::sentence!["words"], usual), ([0, 0], false));
        // where none is usual
        assert_eq!(tags(alike(), None), ([1, 0], true));
        assert_eq!(tags(mixed(), None), ([1, 1], false));
        assert_eq!(tags(crate::sentence!["words"], None), ([0, 0], false));
    }

    #[test]
    fn a_wide_table_has_its_names_for_cards_too() {
        let columns = [
            Column::words("a \"b\" <i>"),
            Column::numbers("n").of(Tag::Assumed),
        ];
        let table = wide_table(&columns, Order::Fixed, "<tr><td>x</td><td>1</td></tr>");
        let style = "style=\"--c1:&quot;a \\&quot;b\\&quot; &lt;i&gt;&quot;;--c2:&quot;n (assumed)&quot;;\"";
        assert!(table.contains(style), "{table}");
        assert!(
            table.contains("<th class=\"r\">n <small class=\"tag assumed\">"),
            "{table}"
        );
    }

    #[test]
    fn names_from_outside_are_text() {
        assert_eq!(
            escaped("<script>'\"&\u{1b}"),
            "&lt;script&gt;&#39;&quot;&amp;\u{fffd}"
        );
    }
}
