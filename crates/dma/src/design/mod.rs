// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A design: everything that is chosen for one domain with tables of its own; and the registry of
//! all that can be chosen.
//!
//! # Theory
//!
//! A design is an allocator, a policy, and options of both and of the tables. `allocators` and
//! `policies` list what there is, each once; their product is every design (`all`). `presets`
//! are designs with a name: those of systems that people run, as ATC'15 §3 and its table 1 describe
//! them, and those that no system ships. Whatever lists, measures or attacks designs asks here, so
//! a new one appears everywhere.
//!
//! In words ([`Design::parse`], and `Display` back): a preset, or an allocator and a policy, then
//! options, separated by commas: `linux-3.17`, `magazine,strict`,
//! `eiovar,deferred-global,order=descending,leaf=2m`.

mod parse;
mod registry;

pub use parse::DesignError;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub use registry::{Entry, Preset, Shipped, all, allocators, policies, presets};

use crate::{domain::DomainConfig, table::TableConfig};

/// What a domain is made of: its allocator, its invalidation policy and its tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // its fields say it
pub struct Design {
    pub domain: DomainConfig,
    pub tables: TableConfig,
}

impl From<DomainConfig> for Design {
    fn from(domain: DomainConfig) -> Self {
        Design {
            domain,
            tables: TableConfig::default(),
        }
    }
}
