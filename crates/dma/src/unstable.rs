// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What only the feature `unstable` shows, here and in `ioatlas-vhost`.
//!
//! Shown without it is what a driver, or a kernel on a unit of ours, has to name: clients, domains,
//! the platform, units of measure, configurations, and errors as far as one acts on them; there what
//! a device or a VMM has to. A type
//! that is shown nowhere and yet comes out of a function, as what an error has inside, can be used
//! and not named; a method that takes one, or exists to return one, is hidden.

/// A `pub use` with the feature `unstable`; without it the names are the crate's own.
#[doc(hidden)]
#[macro_export]
macro_rules! unstable_use {
    ($($names:tt)*) => {
        #[cfg(feature = "unstable")]
        pub use $($names)*;
        #[cfg(not(feature = "unstable"))]
        pub(crate) use $($names)*;
    };
}
