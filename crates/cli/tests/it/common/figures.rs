// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The numbers of a report's views, to compare them.

use serde_json::Value;
use std::collections::HashSet;

/// Every figure of the model as (value, text, tag).
pub fn figures(value: &Value, found: &mut HashSet<(String, String, String)>) {
    match value {
        Value::Object(fields) => {
            if let (Some(number), Some(text), Some(tag)) =
                (fields.get("value"), fields.get("text"), fields.get("tag"))
            {
                let words = |v: &Value| v.as_str().unwrap().to_owned();
                let number = number.as_f64().expect("finite");
                found.insert((number.to_string(), words(text), words(tag)));
                assert!(fields["unit"].is_string());
                return;
            }
            fields.values().for_each(|field| figures(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| figures(item, found)),
        _ => {}
    }
}

/// Every number of the page as (value, text, tag).
pub fn page_figures(html: &str) -> HashSet<(String, String, String)> {
    let between = |text: &str, start: &str, end: &str| {
        let from = text.find(start).unwrap() + start.len();
        text[from..][..text[from..].find(end).unwrap()].to_owned()
    };
    html.split("<data ")
        .skip(1)
        .map(|piece| {
            let value = between(piece, "value=\"", "\"");
            (
                value,
                between(piece, ">", "</data>"),
                between(piece, "class=\"", "\""),
            )
        })
        .collect()
}
