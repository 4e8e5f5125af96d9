// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Drawings of the page that need no script. Colours and fonts are the page's (`page.css`), so dark
//! mode and printing work. What a drawing shows stands above it: `html/points.rs`.

mod captures;
mod safety;
mod sizes;

pub(super) use captures::{over_time, size_histogram};
pub(super) use safety::cost_against_safety;
pub(super) use sizes::{MOST_NAMED, size_curve};

use ioatlas_present::html::escaped;

/// Size of a drawing in its own units; the page scales it to the width there is.
const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 320.0;
/// The plot within it.
const LEFT: f64 = 94.0;
const RIGHT: f64 = WIDTH - 24.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = HEIGHT - 46.0;

fn open(title: &str, width: f64, height: f64) -> String {
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">",
        escaped(title)
    )
}
