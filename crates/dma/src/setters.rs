// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How configurations are written. They are `#[non_exhaustive]`, so that a field can be added
//! without breaking code that makes one: it begins with the defaults, and sets the rest by methods
//! that have the fields' names.

/// Makes these methods, `const` where that is written and nothing has to be dropped. Of a field
/// that may be absent, `name?: Type`, the method takes a value or an `Option`, and is not.
#[doc(hidden)] // for crates of this repository
#[macro_export]
macro_rules! setters {
    (const $config:ident { $($fields:tt)* }) => {
        $crate::setters!(@all [const] $config { $($fields)* });
    };
    ($config:ident { $($fields:tt)* }) => {
        $crate::setters!(@all [] $config { $($fields)* });
    };
    (@all $const:tt $config:ident {
        $($field:ident: $type:ty),* $(,)? $(; $($option:ident?: $inner:ty),* $(,)?)?
    }) => {
        impl $config {
            $($crate::setters!(@one $const $field: $type);)*
            $($(
                #[doc = concat!(
                    "With this [`", stringify!($option), "`](Self#structfield.", stringify!($option),
                    "), or without one."
                )]
                #[inline]
                #[must_use]
                pub fn $option(mut self, $option: impl Into<Option<$inner>>) -> Self {
                    self.$option = $option.into();
                    self
                }
            )*)?
        }
    };
    (@one [$($const:tt)?] $field:ident: $type:ty) => {
        #[doc = concat!(
            "With this [`", stringify!($field), "`](Self#structfield.", stringify!($field), ")."
        )]
        #[inline]
        #[must_use]
        pub $($const)? fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    };
}
