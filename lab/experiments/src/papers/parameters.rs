// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Every number that goes into a model, and where it comes from: what was fitted, and what is free.

use super::Made;
use ioatlas_present::{Cell, grouped};
use ioatlas_sim::timing::params::Origin;
use serde::Serialize;
use std::borrow::Cow;

/// A number, or a choice, that goes into a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Parameter {
    /// Of what, with the exhibits that rest on it.
    pub model: &'static str,
    pub name: Cow<'static, str>,
    /// A number, or the word for a choice.
    pub value: Cell,
    pub unit: &'static str,
    pub origin: Origin,
    /// Why it has this value; of a fitted one, what it was fitted to.
    pub source: Cow<'static, str>,
}

impl Parameter {
    pub fn new(
        model: &'static str,
        name: &'static str,
        (value, unit): (impl Into<Cell>, &'static str),
        origin: Origin,
        source: impl Into<Cow<'static, str>>,
    ) -> Self {
        Parameter {
            model,
            name: name.into(),
            value: value.into(),
            unit,
            origin,
            source: source.into(),
        }
    }

    /// Its value with its unit.
    pub fn shown(&self) -> String {
        let value = match self.value {
            Cell::Number(number) if number.fract() == 0.0 => grouped(number as u64),
            Cell::Number(number) if number < 1.0 => format!("{number:.3}"),
            _ => self.value.text(),
        };
        format!("{value} {}", self.unit).trim_end().into()
    }

    pub fn origin(&self) -> &'static str {
        word(self.origin)
    }
}

/// What the words for origins mean.
pub(super) const MEANING: &str = "Published: a publication says so. Measured: by this project. Fitted: chosen so that a number of a paper comes out, \
     which is then no evidence. Free: no source says.";

const fn word(origin: Origin) -> &'static str {
    match origin {
        Origin::Published => "published",
        Origin::Measured => "measured",
        Origin::Fitted => "fitted",
        Origin::Free => "free",
    }
}

/// The parameters of all exhibits, each once.
pub(super) fn all(exhibits: &[Made]) -> Vec<Parameter> {
    let mut all: Vec<Parameter> = Vec::new();
    for parameter in exhibits.iter().flat_map(|made| &made.parameters) {
        if !all.contains(parameter) {
            all.push(parameter.clone());
        }
    }
    all
}

/// How many there are of each origin, in a line.
pub(super) fn count(all: &[Parameter]) -> String {
    let origins = [
        Origin::Published,
        Origin::Measured,
        Origin::Fitted,
        Origin::Free,
    ];
    let each = origins.map(|origin| {
        let count = all.iter().filter(|parameter| parameter.origin == origin);
        format!("{} {}", count.count(), word(origin))
    });
    format!("{} parameters: {}", all.len(), each.join(", "))
}
