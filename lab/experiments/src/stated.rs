// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a number of ours is worth beside one that a document states.

use serde::Serialize;

/// How our value comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Parameters were chosen by what is stated.
    Fitted,
    /// What is stated was not looked at when parameters were chosen.
    Predicted,
    /// What is stated goes in, or holds by how the model is built.
    Input,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Fitted => "fitted",
            Kind::Predicted => "predicted",
            Kind::Input => "input",
        }
    }

    /// Whether it counts for or against what is stated: what was fitted to it, or holds by
    /// construction, is shown and counts neither way.
    pub fn is_evidence(self) -> bool {
        match self {
            Kind::Predicted => true,
            Kind::Fitted | Kind::Input => false,
        }
    }
}
