#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Runs the driver's conformance cases against each bug planted in the driver (those of ci/planted
# with a line `seen by:`) and prints which unit sees it. A unit sees a bug where it breaks a
# property (P1 to P14).
#
# Not here: skip-write-back. Both units look into the memory that we write; one that does not snoop
# is of ioatlas-viommu's suite (writeback), where ci/mutants.sh has it killed.
#
# Exit status 1: a bug that a unit should see and does not, or a failure without any.
cd "$(dirname "$0")/.." || exit 2
. ci/planted-bugs.sh

for bug in $(bugs); do
    units=$(field "$bug" 'seen by')
    [ -z "$units" ] || echo "$bug $units"
done >"$work/wanted"
plant

cases() {
    timeout 600 cargo test --quiet -p ioatlas-vtd --test conformance -- --exact 'the driver' >"$log" 2>&1
}
if ! { cases && grep -q '; 0 ignored;' "$log"; }; then
    broken "the cases fail, or are not run, without any planted bug"
fi
printf '%-24s | %-18s | %s\n' bug 'seen by' 'first in these words'
while read -r bug units; do
    IOATLAS_MUTANT=$bug cases || true
    seen=
    words=
    for unit in QEMU software; do
        if grep -qE " on $unit: P([1-9]|1[0-4]):" "$log"; then
            seen="$seen $unit"
        fi
    done
    for unit in $units; do
        case "$seen " in
        *" $unit "*) ;;
        *) words="${words}NOT SEEN by $unit; " ;;
        esac
    done
    if [ -z "$words" ]; then
        # `head` ends before `grep` has said all that there is
        words=$(grep -oE '[^:]* on (QEMU|software): P[0-9]+: .*' "$log" | head -n 1 | cut -c 1-110) || true
    fi
    count "$words"
    printf '%-24s |%-19s | %s\n' "$bug" "$seen" "$words"
done <"$work/wanted"
closing
