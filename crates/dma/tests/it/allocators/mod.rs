// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One suite over every allocator, a differential run against a naive model, and what is particular
//! to one design.
//!
//! Most tests run on a host platform whose CPU the test chooses ([`rig::Board`]); after each step
//! the rig audits the allocator and adds up its pages.

pub mod counting;
mod differential;
mod eiovar_cache;
mod freebsd_search;
mod identity;
mod kmalloc;
mod macos_blocks;
mod magazine_cache;
mod magazine_visits;
mod magazine_working_set;
mod model;
mod rbtree_scan;
mod rig;
mod suite;
mod threads;
mod vmem_fit;
mod warm;

use ioatlas_dma::iova::{
    AllocatorConfig, BackingConfig, EiovarConfig, KmallocConfig, MagazineConfig,
};
use ioatlas_dma::units::{ByteCount, PageCount};

/// All that every allocator must pass.
mod tests {
    pub use crate::allocators::{differential::*, suite::*, threads::*, warm::*};
}

/// Each allocator is a module with all tests of the suite.
macro_rules! suite {
    ($($name:ident: $config:expr;)*) => {
        $(mod $name {
            use super::*;
            suite!(@tests $config;
                ranges_are_disjoint_aligned_and_inside
                exhaustion_is_exact_and_what_comes_back_serves_any_size
                an_error_counts_what_does_not_serve
                page_0_is_given_where_it_is_asked_for
                a_reserved_range_is_exact_and_excludes_others
                what_is_cached_can_be_reserved
                ranges_outside_or_overflowing_are_refused
                sizes_without_bound_are_refused
                apertures_of_any_place_and_size_work
                an_alloc_may_return_to_another_cpu
                drain_gives_everything_back
                the_state_can_be_read
                limits_that_nothing_meets_are_named
                a_preference_is_kept_while_it_can_be
                agrees_with_a_naive_model
                threads_never_get_the_same_page
                nothing_is_allocated_once_warm
            );
        })*
    };
    (@tests $config:expr; $($test:ident)*) => {
        $(#[test]
        fn $test() {
            tests::$test($config);
        })*
    };
}

const fn sizes(
    magazine_len: usize,
    classes: usize,
    run: usize,
    depot_full_max: usize,
) -> AllocatorConfig {
    AllocatorConfig::Magazine(
        MagazineConfig::DEFAULT
            .magazine_len(magazine_len)
            .classes(classes)
            .run(run)
            .depot_full_max(depot_full_max)
            .backing(BackingConfig::Rbtree),
    )
}

const fn eiovar(list_len: usize, classes: usize) -> BackingConfig {
    BackingConfig::Eiovar(EiovarConfig::DEFAULT.list_len(list_len).classes(classes))
}

/// Small magazines, so that what is below is met often.
const fn over(backing: BackingConfig) -> AllocatorConfig {
    AllocatorConfig::Magazine(
        MagazineConfig::DEFAULT
            .magazine_len(3)
            .classes(3)
            .run(3)
            .depot_full_max(1)
            .backing(backing),
    )
}

const fn capped(classes: usize, bytes: u64, pages: u64) -> AllocatorConfig {
    AllocatorConfig::Magazine(
        MagazineConfig::DEFAULT
            .classes(classes)
            .cpu_bytes_max(ByteCount(bytes))
            .cpu_pages_max(PageCount(pages)),
    )
}

suite! {
    rbtree: AllocatorConfig::RBTREE;
    eiovar: AllocatorConfig::Plain(BackingConfig::Eiovar(EiovarConfig::default()));
    eiovar_small: AllocatorConfig::Plain(eiovar(2, 3));
    eiovar_without_room: AllocatorConfig::Plain(eiovar(0, 4));
    eiovar_senseless: AllocatorConfig::Plain(eiovar(usize::MAX, usize::MAX));
    freebsd: AllocatorConfig::Plain(BackingConfig::Freebsd);
    // every class there is, and caps that are met
    magazine_wide: capped(16, 16 << 10, 1 << 14);
    magazine_of_few_bytes: capped(6, 1 << 10, 100);
    magazine_over_eiovar: over(eiovar(4, 2));
    magazine_over_freebsd: over(BackingConfig::Freebsd);
    magazine: AllocatorConfig::Magazine(MagazineConfig::default());
    // small ones meet their bounds early: exchanges, overflows, runs that do not fit
    magazine_small: sizes(3, 3, 2, 1);
    magazine_smallest: sizes(1, 2, 1, 0);
    magazine_no_class: sizes(4, 0, 8, 2);
    magazine_senseless: sizes(0, 64, 0, 5);
    vmem: AllocatorConfig::Plain(BackingConfig::Vmem);
    vmem_magazine: over(BackingConfig::Vmem);
    macos: AllocatorConfig::Plain(BackingConfig::MacOs);
    macos_magazine: over(BackingConfig::MacOs);
}

/// What of the suite does not depend on what chooses the place; `kmalloc.rs` has the rest.
mod kmalloc_suite {
    use super::*;
    suite!(@tests AllocatorConfig::Kmalloc(KmallocConfig::default());
        an_alloc_may_return_to_another_cpu
        threads_never_get_the_same_page
        nothing_is_allocated_once_warm
    );
}
