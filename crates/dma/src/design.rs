// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A design: everything that is chosen for one domain with tables of its own.

use crate::{domain::DomainConfig, table::TableConfig};

/// Assigner, policy and tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Design {
    /// Of the domain.
    pub domain: DomainConfig,
    /// Of its tables.
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
