#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Rules for the tracked files that no compiler checks. Prints what breaks them; long files are a
# warning only.
set -euo pipefail
cd "$(dirname "$0")/.."
bad=0
complain() {
    echo "tree: $*" >&2
    bad=1
}

# Licence: the first line of each source file, or the second after `#!`.
while IFS= read -r file; do
    first=$(head -n 2 "$file" | grep -v '^#!' | head -n 1 || true)
    case $first in
    *'SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause'*) ;;
    *) complain "$file does not begin with the licence line" ;;
    esac
done < <(git ls-files '*.rs' '*.toml' '*.sh' '*.css' '*.js' .ci/run)

# Nothing of the machine it was written on. (Brackets keep this file from finding itself.)
# Cargo.lock names the default registry by its index, which is not a choice of ours.
if git grep -nIE '(^|[^[:alnum:]_.])/([w]ork|[t]mp|[r]oot|[h]ome)/' -- . ':!Cargo.lock'; then
    complain "machine paths, above"
fi
if git grep -nIE '([c]rates\.io|[p]ypi\.org|[n]pmjs|[a]rtifactory|[d]eb\.debian\.org|[p]roxy\.golang)' -- . ':!Cargo.lock'; then
    complain "registry hosts, above"
fi
if grep -s '^source = ' Cargo.lock | grep -v 'registry+https://github.com/rust-lang/[c]rates.io-index'; then
    complain "Cargo.lock names another registry, above"
fi

# Of a test program's folder each file is a module that it names: no other is compiled, and nothing
# would say so.
while IFS= read -r file; do
    folder=$(dirname "$file") name=$(basename "$file" .rs)
    [ ! -f "$folder/main.rs" ] || [ "$name" = main ] || grep -qE "^ *(pub )?mod $name;" "$folder/main.rs" ||
        complain "$file is in no test program: $folder/main.rs has no mod $name"
done < <(git ls-files 'crates/*/tests/*.rs' 'lab/*/tests/*.rs' 'examples/*/tests/*.rs')

# What only ci/full.sh runs is found.
if ! stages=$(ci/full.sh --list) || [ "$(grep -c '^[a-z-]* ' <<<"$stages")" -ne "$(grep -c '^stage [a-z]' <<<"$(grep -vE '^stage (tools|clean-tree) ' ci/full.sh)")" ]; then
    complain "ci/full.sh does not list the stages that it has"
fi

# Who copies an example names what is promised: no module of the core that its documents hide.
hidden='iova|table|bounce|invalidation|magazine'
if git grep -nE "ioatlas_dma::($hidden)\\b|^    ($hidden)::" -- 'examples/*.rs' 'ci/no-std/*.rs' 'crates/*/README.md' README.md; then
    complain "examples of what the core's documents hide, above"
fi

# Shared words go through the platform, or model checker and simulator do not see them. `Ordering`
# is re-exported, and what a signal handler sets is no word of theirs.
if git grep -nE '(core|std)::sync::atomic|sync::\{[^}]*atomic' -- 'crates/*/src/*.rs' 'lab/*/src/*.rs' ':!crates/host/src' \
    ':!lab/sim/src/platform' ':!crates/dma/src/platform/word.rs' ':!crates/dma/src/platform/one_cpu.rs' ':!crates/vfio/src/platform' ':!crates/cli/src/live_capture/stop.rs' |
    grep -vE ':[[:space:]]*//|pub use core::sync::atomic::Ordering;'; then
    complain "atomics outside the platforms, above"
fi
# The lint that says the same is in force: it finds each type that clippy.toml names, in a file that
# uses them.
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
types=$(grep -oE 'core::sync::atomic::Atomic[A-Za-z0-9]+' clippy.toml | sort -u)
mkdir "$probe/src"
printf '[workspace]\n[package]\nname = "probe"\nedition = "2024"\n' >"$probe/Cargo.toml"
: >"$probe/src/lib.rs"
while IFS= read -r type; do
    echo "pub fn $(basename "${type//:://}" | tr '[:upper:]' '[:lower:]')(_: &$type) {}"
done <<<"$types" >"$probe/src/lib.rs"
CLIPPY_CONF_DIR=$PWD CARGO_TARGET_DIR=$probe/target cargo clippy --offline --manifest-path "$probe/Cargo.toml" \
    2>"$probe/said" || true
wanted=$(wc -l <<<"$types")
found=$(grep -c 'use of a disallowed type' "$probe/said" || true)
if [ -z "$types" ] || [ "$found" -ne "$wanted" ]; then
    complain "clippy.toml disallows $wanted atomic types, clippy finds $found"
fi

# The page of numbers is as the command wrote it.
ci/numbers.sh --check || complain "docs/numbers.md is not as ci/numbers.sh wrote it"

# Those of planted bugs that the code has moved away from: only ci/full.sh needs them.
ci/mutants.sh --check >"$probe/planted" 2>&1 || sed 's/^/tree: warning: /' "$probe/planted"

git ls-files '*.rs' '*.sh' '*.css' '*.js' .ci/run | while IFS= read -r file; do
    lines=$(wc -l <"$file")
    if [ "$lines" -gt 600 ]; then
        echo "tree: warning: $file has $lines lines, over 600"
    fi
done
exit $bad
