# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# shellcheck shell=bash What the scripts have in common that run tests against planted bugs; sourced
# by them at the top of the tree.
#
# A planted bug is a change to the product that a test has to notice. ci/planted holds them as
# patches, so the product has none. A patch begins with lines `bug:`, `what:`, `killed by:`
# (package, module and filter of the quickest test that kills it), for bugs of the VT-d driver `seen
# by:` (units whose conformance cases see it), and where the explorer of schedules cannot find one
# `explorer blind:` with the reason. Bugs whose lines touch share a patch.
#
# `plant` copies the tree and applies all of them there, each behind a switch
# (ci/planted/switch.diff), so one build holds them all; IOATLAS_MUTANT chooses one. A patch that
# does not apply is a failure: bring it up to date by hand.
set -euo pipefail

CARGO_TARGET_DIR=$(realpath -m "${IOATLAS_MUTANTS_TARGET:-${CARGO_TARGET_DIR:-target}/mutants}")
RUSTFLAGS="${RUSTFLAGS:-} --cfg ioatlas_killers" # of the largest test only what these scripts run
RUST_BACKTRACE=0
PROPTEST_DISABLE_FAILURE_PERSISTENCE=1
export CARGO_TARGET_DIR RUSTFLAGS RUST_BACKTRACE PROPTEST_DISABLE_FAILURE_PERSISTENCE
unset IOATLAS_MUTANT
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/log
passed=0
failed=0

# bugs: their names, one a line.
bugs() {
    sed -n 's/^bug: //p' ci/planted/*.patch
}

# field BUG NAME: what the bug's patch says after `NAME: `.
field() {
    awk -v bug="$1" -v name="$2: " '
        /^bug: / { on = ($0 == "bug: " bug) }
        on && index($0, name) == 1 { print substr($0, length(name) + 1) }' ci/planted/*.patch
}

# broken WHY: there is nothing to say of planted bugs, since what has to hold without one does not.
broken() {
    [ ! -e "$log" ] || cat "$log"
    echo "$1"
    echo "0 passed, 1 failed"
    exit 1
}

# apply FOLDER: all patches to the tree in it, which may be inside another repository.
apply() {
    local patch
    for patch in "$PWD"/ci/planted/switch.diff "$PWD"/ci/planted/*.patch; do
        (cd "$1" && GIT_CEILING_DIRECTORIES=$(dirname "$1") git apply "$patch") ||
            { echo "${patch#"$PWD"/} does not apply" && return 1; }
    done
}

# plant: goes to a copy of the tree with all bugs in it. Files that are as they were keep their
# times, for cargo.
plant() {
    local bug file tree=$CARGO_TARGET_DIR/tree
    for bug in $(bugs); do
        grep -qF "mutant::active(\"$bug\")" ci/planted/*.patch || broken "no patch asks for $bug"
    done
    mkdir -p "$tree" "$work/tree"
    git ls-files --cached --others --exclude-standard | sort -u >"$work/files"
    while read -r file; do
        [ ! -e "$file" ] || cp --parents "$file" "$work/tree"
    done <"$work/files"
    apply "$work/tree" >"$log" 2>&1 || broken "planted bugs do not apply"
    (cd "$work/tree" && find . -type f) | sort >"$work/files"
    (cd "$tree" && find . -type f) | sort | comm -13 "$work/files" - | (cd "$tree" && xargs -r rm)
    find "$tree" -mindepth 1 -type d -empty -delete # a folder is a crate to cargo
    while read -r file; do
        cmp -s "$work/tree/$file" "$tree/$file" || install -D -m 755 "$work/tree/$file" "$tree/$file"
    done <"$work/files"
    cd "$tree"
}

# said OTHERWISE: the first line of the log that names a safety property, else that.
said() {
    local words
    # `head` ends before `grep` has said all that there is
    words=$(grep -aE "(^|[ (])(P([1-9]|1[0-4])|WIOSCA'10 4\.2)[:)]" "$log" | head -n 1 | sed 's/^ *//' | cut -c 1-110) || true
    echo "${words:-$1}"
}

# count WORDS: one more bug, of which these words are said: a verdict that begins with NOT is a
# failure.
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
