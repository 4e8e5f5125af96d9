# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# shellcheck shell=bash What the gate (.ci/run), ci/quick.sh and ci/full.sh have in common; sourced
# by them at the top of the tree.
#
# A stage is a command with a name. Stages run one after the other, each whatever the ones before it
# said. The end is a table of them with seconds and tests, what the failed ones printed, and the
# line "N passed, N failed".
#
# A stage counts the tests that its output speaks of: the `test result:` lines of cargo, else a last
# line "N passed, N failed", else itself as one. One that ends with an error but without a failed
# test is one failure; so is one that ends well and has run nothing. A test that is ignored is a
# failure, unless its reason names a stage of ci/full.sh.
set -euo pipefail
exec </dev/null
export LC_ALL=C.UTF-8 CARGO_TERM_COLOR=never
export PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH

passed=0 failed=0 skipped=0
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
: >"$logs/table"
: >"$logs/failures"

# What a test that is ignored has to say: a stage of the full run, by its name.
elsewhere="ci/full\.sh ($(sed -n "/^all='/,/^'/s/^\([a-z-]*\)  .*/\1/p" ci/full.sh | paste -sd '|'))([^a-z-]|\$)"

# stage NAME COMMAND..: unless $only names others.
only=
stage() {
    local name=$1 start=$SECONDS log=$logs/log bad=0 p f s said
    shift
    [ -z "$only" ] || [[ " $only " == *" $name "* ]] || return 0
    printf '\n==== %s\n' "$name"
    # a function called where its status is looked at would go on after an error; a shell of its own
    # ends there
    set +e
    (set -e; "$@") 2>&1 | tee "$log"
    [ "${PIPESTATUS[*]}" = "0 0" ] || bad=1
    set -e
    if grep -qE '^test result: |^running [0-9]+ tests?$' "$log"; then
        # a program that began and did not tell a result has ended in the middle, with whatever
        # status
        read -r p f < <(awk '
            /^running [0-9]+ tests?$/ { begun++ }
            /^test result: / { ended++; p += $4; f += $6 }
            END { if (begun > ended) f += begun - ended; print p + 0, f + 0 }' "$log")
    elif [[ $(tail -n 1 "$log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
        p=${BASH_REMATCH[1]} f=${BASH_REMATCH[2]}
    else
        p=$((1 - bad)) f=$bad
    fi
    if [ "$f" -eq 0 ] && { [ $bad -eq 1 ] || [ "$p" -eq 0 ]; }; then
        f=1
    fi
    s=$(grep -E '^test .* \.\.\. ignored' "$log" | grep -cvE "$elsewhere" || true)
    said=ok
    if [ "$f" -gt 0 ] || [ "$s" -gt 0 ]; then
        said=FAILED
        remember "$name" "$log"
    fi
    printf '==== %s: %s, %d s, %d passed, %d failed\n' "$name" $said $((SECONDS - start)) "$p" "$f"
    printf '%s\t%s\t%d\t%d\t%d\t%d\n' "$name" $said $((SECONDS - start)) "$p" "$f" "$s" >>"$logs/table"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

# remember STAGE LOG: keeps for the end what tests that failed said, other lines that tell of a
# failure, and the last ones.
remember() {
    {
        printf '\n==== failed: %s\n' "$1"
        awk '/^failures:$/ { on = 1 } on { print NR ":" $0 } /^test result: / { on = 0 }' "$2" | head -n 80
        grep -nE '^error|panicked at|FAILED|DIFFERENT|NOT (KILLED|LISTED|FOUND|SEEN)|signal:|Killed' "$2" | head -n 20 || true
        grep -E '^test .* \.\.\. ignored' "$2" | grep -vE "$elsewhere" | sed 's/^/skipped: /' | head -n 20 || true
        echo ...
        tail -n 12 "$2"
    } | cut -c1-400 >>"$logs/failures"
}

# closing: the table, what failed said, the last line, and the status to end with.
closing() {
    local name
    for name in $only; do
        grep -q "^$name	" "$logs/table" || { echo "no such stage: $name" && failed=$((failed + 1)); }
    done
    printf '\n==== stages\n%-24s %-8s %8s %8s %8s\n' stage '' seconds passed failed
    awk -F '\t' '{ printf "%-24s %-8s %8d %8d %8d\n", $1, $2, $3, $4, $5 }' "$logs/table"
    cat "$logs/failures"
    [ "$failed" -eq 0 ] || echo "compiled with $(rustc --version)"
    printf '\n==== %d s in all\n' "$SECONDS"
    local line="$passed passed, $failed failed"
    if [ "$skipped" -gt 0 ]; then
        line="$line, $skipped skipped"
    fi
    echo "$line"
    [ "$failed" -eq 0 ] && [ "$skipped" -eq 0 ] && [ "$passed" -gt 0 ]
}

# needs PROGRAM SCRIPT: runs the script, which installs it, where it is not found.
needs() {
    command -v "$1" >/dev/null || "$2"
}

rust_tools() {
    if ! command -v cargo >/dev/null; then
        echo "no cargo: install Rust with rustup, then: rustup default stable" >&2
        return 1
    fi
    cargo --version && rustc --version && cargo clippy --version && cargo fmt --version
}

format() {
    cargo fmt --all --check &&
        cargo fmt --manifest-path ci/no-std/Cargo.toml --check && # outside the workspace, as the next two
        cargo fmt --manifest-path examples/kernel/Cargo.toml --check &&
        rustfmt --edition 2024 --check fuzz/fuzz_targets/*.rs
}

clippy() {
    cargo clippy "$@" --all-targets -- -D warnings -D clippy::undocumented_unsafe_blocks
}

# The tree is as it was when this was sourced.
tree_before=$(git status --porcelain)
clean_tree() {
    local now
    now=$(git status --porcelain) || return 1
    [ "$now" = "$tree_before" ] || { diff <(echo "$tree_before") <(echo "$now"); return 1; }
}
