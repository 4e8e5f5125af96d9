#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Runs the tests against each planted bug of crates/dma/src/mutant.rs, and prints who kills it.
#
# One build holds all of them; IOATLAS_MUTANT chooses one. A bug counts as killed where a test fails and names a safety
# property (P1 to P14) in what it says. Exit status 1: a survivor, or a failure without any bug.
set -u
cd "$(dirname "$0")/.." || exit 2

CARGO_TARGET_DIR=${IOATLAS_MUTANTS_TARGET:-${CARGO_TARGET_DIR:-target}/mutants}
RUSTFLAGS="${RUSTFLAGS:-} --cfg ioatlas_mutants"
RUST_BACKTRACE=0
PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 # write nothing into the tree
export PROPTEST_DISABLE_FAILURE_PERSISTENCE
export CARGO_TARGET_DIR RUSTFLAGS RUST_BACKTRACE
unset IOATLAS_MUTANT
packages="-p ioatlas-dma -p ioatlas-vtd -p ioatlas-viommu"
log=$(mktemp) || exit 2
trap 'rm -f "$log"' EXIT

# mutant              package         tests     filter: the quickest that kills it
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
'

# shellcheck disable=SC2086 # the packages are words
if ! cargo test --quiet $packages --tests --no-run >"$log" 2>&1; then
    cat "$log"
    echo "the mutants do not build"
    exit 1
fi
# shellcheck disable=SC2086
if ! cargo test --quiet $packages --tests >"$log" 2>&1; then
    cat "$log"
    echo "the tests fail without any planted bug"
    exit 1
fi
echo "no planted bug: every test passes"

passed=0
failed=0
printf '%-20s | %-45s | %s\n' mutant 'killed by' 'in these words'
for mutant in $(sed -n 's/^ *Mutant::[A-Za-z]* => "\(.*\)",$/\1/p' crates/dma/src/mutant.rs); do
    row=$(echo "$killers" | grep "^$mutant ") || row="$mutant - - -"
    # shellcheck disable=SC2086 # the columns are words
    set -- $row
    said='NOT KILLED: no test is listed'
    killer="$3 $4"
    if [ "$3" != - ]; then
        if IOATLAS_MUTANT=$mutant timeout 600 cargo test --quiet -p "$2" --test "$3" -- "$4" >"$log" 2>&1; then
            said='NOT KILLED'
        else
            # the first line of a failure that names a property
            said=$(grep -E "(^|[ (])(P([1-9]|1[0-4])|WIOSCA'10 4\.2)[:)]" "$log" | head -n 1 | sed 's/^ *//' | cut -c 1-110)
            [ -n "$said" ] || said='NOT KILLED: it fails, and names no safety property'
        fi
    fi
    case $said in
    'NOT KILLED'*) failed=$((failed + 1)) ;;
    *) passed=$((passed + 1)) ;;
    esac
    printf '%-20s | %-45s | %s\n' "$mutant" "$killer" "$said"
done

echo "mutation score: $passed of $((passed + failed)) planted bugs killed"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
