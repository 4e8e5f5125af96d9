#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Runs the tests against each planted bug (ci/planted-bugs.sh says what that is), and prints what
# kills it.
#
#   ci/mutants.sh [BUG..]     all of them, or those named
#   ci/mutants.sh --check     only whether they apply
#
# A bug counts as killed where a test fails and names a safety property (P1 to P14) in what it says.
# Exit status 1: a survivor, a bug without a killer, a patch that does not apply, or a failure
# without any bug.
cd "$(dirname "$0")/.." || exit 2
. ci/planted-bugs.sh

if [ "${1-}" = --check ]; then
    plant
    echo "all planted bugs apply"
    exit
fi
chosen=${*:-$(bugs)}
for bug in $chosen; do
    [ -n "$(field "$bug" 'killed by')" ] || broken "$bug: no such planted bug, or nothing is said to kill it"
    echo "$bug $(field "$bug" 'killed by')"
done >"$work/killers"
plant

# tests PACKAGE MODULE FILTER: the names of the tests of that module whose names have the filter in
# them.
tests() {
    sed -n "s/^\($2::.*\): test\$/\1/p" "$work/list-$1" | grep -F -e "$3" || true
}

# What kills has to pass without a bug. The other tests are not built here: they run elsewhere.
for package in $(awk '{ print $2 }' "$work/killers" | sort -u); do
    cargo test --quiet -p "$package" --test it -- --list >"$work/list-$package" 2>"$log" || broken "$package does not build"
    names=$(awk -v package="$package" '$2 == package { print $3, $4 }' "$work/killers" |
        while read -r module filter; do tests "$package" "$module" "$filter"; done)
    [ -n "$names" ] || broken "$package has none of the tests that are said to kill bugs"
    # shellcheck disable=SC2086 # the names are words
    cargo test --quiet -p "$package" --test it -- --exact $names >"$log" 2>&1 ||
        broken "$package fails without any planted bug"
done
echo "no planted bug: every test below passes"

printf '%-24s | %-62s | %s\n' bug 'killed by' 'in these words'
while read -r bug package module filter; do
    names=$(tests "$package" "$module" "$filter")
    # shellcheck disable=SC2086 # the names are words
    if [ -z "$names" ]; then
        words='NOT KILLED: no such test'
    elif IOATLAS_MUTANT=$bug timeout 600 cargo test --quiet -p "$package" --test it -- --exact $names >"$log" 2>&1; then
        words='NOT KILLED'
    else
        words=$(said 'NOT KILLED: it fails, and names no safety property')
    fi
    count "$words"
    printf '%-24s | %-62s | %s\n' "$bug" "${package#ioatlas-} $module $filter" "$words"
done <"$work/killers"

echo "mutation score: $passed of $((passed + failed)) planted bugs killed"
closing
