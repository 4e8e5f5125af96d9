#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# The loop while one works: format, tree, and clippy and tests of the crates that differ from branch
# `main` and of those that depend on them. ci/quick.sh CRATE.. takes these crates instead (dma, cli,
# or ioatlas-dma), without dependents. Installs nothing. How it counts, and how it ends:
# ci/stages.sh.
set -euo pipefail
cd -P "$(dirname "$0")/.." # cargo tree tells folders as they are

# The members that differ from `main`, and those that depend on them: names of packages, one a line.
changed() {
    local base manifest name
    base=$(git merge-base HEAD main 2>/dev/null || git merge-base HEAD origin/main 2>/dev/null || echo HEAD)
    { git diff --name-only "$base"; git ls-files --others --exclude-standard; } >"$logs/files"
    for manifest in crates/*/Cargo.toml lab/*/Cargo.toml examples/nvme/Cargo.toml; do
        grep -qE "^(${manifest%Cargo.toml}|Cargo\.(toml|lock)$|clippy\.toml$|\.cargo/|traces/|README\.md$)" "$logs/files" || continue
        name=$(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -n 1)
        cargo tree --offline --workspace --invert "$name" --edges all --prefix none | sed -n "s,^\([^ ]*\) v[^ ]* ($PWD/.*,\1,p"
    done | sort -u
}

. ci/stages.sh
packages=()
if [ $# -gt 0 ]; then
    for name; do
        for folder in crates lab examples; do
            [ ! -f "$folder/$name/Cargo.toml" ] || name=$(sed -n 's/^name = "\(.*\)"/\1/p' "$folder/$name/Cargo.toml" | head -n 1)
        done
        packages+=(-p "$name")
    done
else
    changed >"$logs/packages" # an error of it ends this
    while read -r name; do
        packages+=(-p "$name")
    done <"$logs/packages"
fi

stage format format
stage tree ci/check-tree.sh
if [ ${#packages[@]} -gt 0 ]; then
    stage clippy clippy "${packages[@]}"
    stage tests cargo test --no-fail-fast "${packages[@]}"
fi
if [ -e "$logs/files" ]; then
    if grep -qE '^(ci/(check-)?no-std|crates/(dma|vtd)/(src/|Cargo))' "$logs/files"; then
        stage no-std ci/check-no-std.sh
    fi
    if grep -qE '^(ci/kernel|examples/kernel/)' "$logs/files"; then
        stage kernel-boot ci/kernel-boot.sh
    fi
fi
closing
