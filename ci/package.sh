#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Packages what is published, which is each crate without `publish = false`: all together, for each
# is compiled from its package, on the packages of the others. Looks into them for README and
# licences. Uploads nothing, and leaves them in target/package. The last line is
# "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."
command -v jq >/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends jq; } >&2

published=$(cargo metadata --no-deps --format-version 1 |
    jq -r '.packages[] | select(.publish == null) | "\(.name) \(.version)"')
options=()
while read -r name _; do
    options+=(-p "$name")
done <<<"$published"
# The tree as it is, committed or not. All features, as their documentation is built.
cargo package --allow-dirty --all-features "${options[@]}"

passed=0 failed=0
while read -r name version; do
    package=$name-$version
    # says which of them there is not
    if tar -tf "${CARGO_TARGET_DIR:-target}/package/$package.crate" \
        "$package/README.md" "$package/LICENSE-APACHE" "$package/LICENSE-BSD-3-Clause"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
done <<<"$published"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
