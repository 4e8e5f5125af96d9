#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Runs the tests against each planted bug of crates/dma/src/mutant.rs, and prints who kills it.
#
# A bug counts as killed where a test fails and names a safety property (P1 to P14) in what it says. Exit status 1: a survivor, or a failure without any bug.
set -u
cd "$(dirname "$0")/.." || exit 2

. ci/planted-bugs.sh

# mutant              package         module    filter: the quickest that kills it
killers='
skip-flush            ioatlas-viommu  suite     interrupt::
settle-older          ioatlas-viommu  mutants   began_before_the_unmap
settle-uncovered      ioatlas-viommu  mutants   does_not_settle
undo-without-flush    ioatlas-viommu  suite     interrupt::
release-at-retire     ioatlas-viommu  suite     schedules::everything_at_once
free-table-at-once    ioatlas-viommu  suite     schedules::whole_tables
forget-drain          ioatlas-viommu  suite     schedules::everything_at_once
drop-retire-fence     ioatlas-dma     loom      domain::unmap_against_a_flush
magazine-twice        ioatlas-viommu  suite     schedules::everything_at_once
skip-context-flush    ioatlas-vtd     software  a_whole_life_on_a_plain_unit
skip-iotlb-flush      ioatlas-vtd     software  a_whole_life_on_a_plain_unit
skip-wait             ioatlas-vtd     software  that_does_its_work_later
skip-write-buffer-flush ioatlas-vtd   software  with_write_buffers
skip-device-tlb-flush ioatlas-vtd     software  that_keeps_translations
device-tlb-first      ioatlas-vtd     software  that_asks_again_at_once
skip-write-back       ioatlas-viommu  suite     writeback::all_that_the_unit_needs
keep-walk-caches      ioatlas-vtd     software  with_walk_caches
skip-flush-on-map     ioatlas-vtd     software  in_caching_mode
wrap-count            ioatlas-viommu  suite     identity::sim_wide::a_full_count
release-shared-early  ioatlas-viommu  suite     identity::sim_wide::buffers_that_overlap
stale-walk-promotion  ioatlas-viommu  suite     large::sim_toy
forget-permission-region  ioatlas-viommu  suite  identity::sim_wide::each_use
lose-fallback-undo    ioatlas-viommu  suite     identity::sim_wide::a_full_count
colour-overlap        ioatlas-dma     options   domains_never_share
keep-known-tables     ioatlas-viommu  suite     tables::sim_toy::a_cpu_forgets
skip-bounce-zero      ioatlas-dma     bounce    slots::
copy-whole-slot-back  ioatlas-dma     bounce    slots::
return-slot-early     ioatlas-dma     bounce    slots::
wrong-slot-list       ioatlas-dma     bounce    ladder::a_slot_changes
forget-split-tail     ioatlas-dma     bounce    split::every_offset
merge-elsewhere       ioatlas-vhost   contract  radix::pieces
ack-in-burst          ioatlas-vhost   differential  close_together
ack-unawaited         ioatlas-vhost   iotlb_protocol  radix::an_invalidation_is_acknowledged
update-beats          ioatlas-vhost   contract  radix::old_answers
foreign-base          ioatlas-vhost   contract  radix::elsewhere
evict-ring            ioatlas-vhost   differential  close_together
wrap-length           ioatlas-vhost   contract  radix::bad_ranges
keep-looked-up        ioatlas-vhost   plug      leaves_the_burst
stuck-untold          ioatlas-vfio    suite     failures::what_could_not_be_ended
keep-pending-when-full ioatlas-vfio   suite     calls::a_full_kernel_first_ends
detach-unquiet        ioatlas-vfio    suite     devices::a_device_is_quiet_before
skip-idle             ioatlas-vfio    suite     identity::a_page_goes_with_the_last
keep-idle             ioatlas-vfio    suite     identity::an_idle_page_is_taken_again
stretch-over-gap      ioatlas-vfio    suite     calls::what_lies_between
forget-partial        ioatlas-vfio    suite     calls::a_list_that_does_not_fit
'

lists=$(mktemp -d) || exit 2
trap 'rm -rf "$log" "$lists"' EXIT

# tests PACKAGE MODULE FILTER: the names of the tests of that module whose names have the filter in them.
tests() {
    sed -n "s/^\($2::.*\): test\$/\1/p" "$lists/$1" | grep -F -e "$3"
}

# What kills has to pass without a bug. The other tests are not built here: they run elsewhere.
for package in $(echo "$killers" | awk 'NF { print $2 }' | sort -u); do
    cargo test --quiet -p "$package" --test it -- --list >"$lists/$package" 2>"$log" || broken "$package does not build"
    names=$(echo "$killers" | awk -v package="$package" '$2 == package { print $3, $4 }' |
        while read -r module filter; do tests "$package" "$module" "$filter"; done)
    # shellcheck disable=SC2086 # the names are words
    if ! cargo test --quiet -p "$package" --test it -- --exact $names >"$log" 2>&1; then
        broken "$package fails without any planted bug"
    fi
done
echo "no planted bug: every test below passes"

printf '%-20s | %-45s | %s\n' mutant 'killed by' 'in these words'
for bug in $(bugs); do
    mutant=${bug#*=}
    row=$(echo "$killers" | grep "^$mutant ") || row="$mutant - - -"
    # shellcheck disable=SC2086 # the columns are words
    set -- $row
    words='NOT KILLED: no test is listed'
    killer="$3 $4"
    if [ "$3" != - ]; then
        names=$(tests "$2" "$3" "$4")
        # shellcheck disable=SC2086 # the names are words
        if [ -z "$names" ]; then
            words='NOT KILLED: no such test'
        elif IOATLAS_MUTANT=$mutant timeout 600 cargo test --quiet -p "$2" --test it -- --exact $names >"$log" 2>&1; then
            words='NOT KILLED'
        else
            words=$(said 'NOT KILLED: it fails, and names no safety property')
        fi
    fi
    count "$words"
    printf '%-20s | %-45s | %s\n' "$mutant" "$killer" "$words"
done

echo "mutation score: $passed of $((passed + failed)) planted bugs killed"
closing
