#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Lets the schedule explorer (crates/viommu/tests/it/explorer) look for each planted bug, and prints
# how many seeds it took. The budget is the same for each, and without any bug it must show nothing.
#
# Not looked for: bugs that are planted in what the explorer does not drive, and those whose patch
# says why it is blind to them (`explorer blind:`); ci/mutants.sh has them killed.
#
# Exit status 1: a bug that is not found within the budget, a find that names no safety property (P1
# to P14), or one without any bug.
cd "$(dirname "$0")/.." || exit 2

budget=${IOATLAS_EXPLORE_SEEDS:-1000} # seeds

. ci/planted-bugs.sh
IOATLAS_EXPLORE_SEEDS=$budget
export IOATLAS_EXPLORE_SEEDS
unset IOATLAS_EXPLORE_SEED

# is_driven PATCH: whether it changes something that a domain of the explorer has: not bounce
# buffers.
is_driven() {
    sed -n 's,^+++ b/,,p' "$1" | grep -E '^crates/(dma|vtd)/src/' | grep -Evq '^crates/dma/src/(bounce|dma_api)/'
}
for patch in ci/planted/*.patch; do
    for bug in $(sed -n 's/^bug: //p' "$patch"); do
        blind=$(field "$bug" 'explorer blind')
        is_driven "$patch" || blind='planted in what the explorer does not drive'
        printf '%s\t%s\n' "$bug" "$blind"
    done
done >"$work/wanted"
plant

# explore: runs the explorer into the log.
explore() {
    timeout 300 cargo test --quiet -p ioatlas-viommu --test it -- --exact explorer::no_seed_shows_a_violation --nocapture >"$log" 2>&1
}
explored() {
    sed -n 's/^seeds explored: \([0-9]*\).*/\1/p' "$log" | tail -n 1
}

cargo test --quiet -p ioatlas-viommu --test it --no-run >"$log" 2>&1 || broken "the explorer does not build"
explore || broken "the explorer finds something without any planted bug"
echo "no planted bug: nothing found in $(explored) seeds"

printf '%-26s | %8s | %s\n' bug seeds 'found in these words'
while IFS=$'\t' read -r bug blind; do
    if [ -n "$blind" ]; then
        printf '%-26s | %8s | %s\n' "$bug" - "not looked for: $blind"
        continue
    fi
    if IOATLAS_MUTANT=$bug explore; then
        words='NOT FOUND'
    else
        words=$(said 'NOT FOUND: it fails, and names no safety property')
    fi
    count "$words"
    printf '%-26s | %8s | %s\n' "$bug" "$(explored)" "$words"
done <"$work/wanted"

echo "of $((passed + failed)) planted bugs, $passed found within $budget seeds each"
closing
