# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# shellcheck shell=sh
# What the scripts have in common that run tests against the planted bugs of crates/dma/src/mutant.rs: sourced by them, at the top of the tree.
#
# One build holds all of the bugs (and, by the cfg ioatlas_killers, of the largest test only what these scripts run); IOATLAS_MUTANT chooses one.

CARGO_TARGET_DIR=${IOATLAS_MUTANTS_TARGET:-${CARGO_TARGET_DIR:-target}/mutants}
RUSTFLAGS="${RUSTFLAGS:-} --cfg ioatlas_mutants --cfg ioatlas_killers"
RUST_BACKTRACE=0
PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 # write nothing into the tree
export CARGO_TARGET_DIR RUSTFLAGS RUST_BACKTRACE PROPTEST_DISABLE_FAILURE_PERSISTENCE
unset IOATLAS_MUTANT
log=$(mktemp) || exit 2
trap 'rm -f "$log"' EXIT
passed=0
failed=0

# bugs: VARIANT=name of each, one a line.
bugs() {
    sed -n 's/^ *Mutant::\([A-Za-z]*\) => "\(.*\)",$/\1=\2/p' crates/dma/src/mutant.rs
}

# broken WHY: there is nothing to say of planted bugs, since what has to pass without one does not.
broken() {
    cat "$log"
    echo "$1"
    echo "0 passed, 1 failed"
    exit 1
}

# said OTHERWISE: the first line of the log that names a safety property, else that.
said() {
    words=$(grep -aE "(^|[ (])(P([1-9]|1[0-4])|WIOSCA'10 4\.2)[:)]" "$log" | head -n 1 | sed 's/^ *//' | cut -c 1-110)
    echo "${words:-$1}"
}

# count WORDS: one more bug, of which these words are said: a verdict that begins with NOT is a failure.
count() {
    case $1 in
    'NOT '*) failed=$((failed + 1)) ;;
    *) passed=$((passed + 1)) ;;
    esac
}

# closing: the last line, and the status to end with.
closing() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}
