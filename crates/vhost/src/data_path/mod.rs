// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What a data path does with a cache: misses asked for once, rings remembered.

mod meta;
mod pending;

pub use meta::{MetaError, MetaTranslation};
pub use pending::{Asked, PendingMiss, PendingMisses};
