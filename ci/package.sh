#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Packages what is published, which is each crate without `publish = false`: all together, for each
# is compiled from its package, on the packages of the others. Looks into them for README and
# licences; then runs the program in the README of ioatlas in a crate of its own, which has them as
# a registry would give them. Uploads nothing, and leaves nothing. The last line is "N passed, N
# failed".
#
# Cargo takes a package of a registry for unchangeable: where it has compiled or unpacked one of the
# same name and version before, it does not look at this one. So all is done in a folder of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v jq >/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends jq; } >&2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CARGO_TARGET_DIR=$work/target
# what cargo has but what it unpacked
home=${CARGO_HOME:-$HOME/.cargo}
mkdir -p "$home/registry" "$work/home/registry"
find "$home" -mindepth 1 -maxdepth 1 ! -name registry -exec ln -s -t "$work/home" {} +
find "$home/registry" -mindepth 1 -maxdepth 1 ! -name src -exec ln -s -t "$work/home/registry" {} +
export CARGO_HOME=$work/home

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
    if tar -tf "$CARGO_TARGET_DIR/package/$package.crate" \
        "$package/README.md" "$package/LICENSE-APACHE" "$package/LICENSE-BSD-3-Clause"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
done <<<"$published"

outside=$work/outside
mkdir -p "$outside/src"
sed -n '/^```rust$/,/^```$/{/^```/!p}' crates/ioatlas/README.md >"$outside/src/main.rs"
{
    printf '[package]\nname = "outside"\nversion = "0.1.0"\nedition = "2024"\n[workspace]\n'
    printf '[dependencies]\nioatlas = { version = "0.2", features = ["testing"] }\n[patch.crates-io]\n'
    while read -r name version; do
        printf '%s = { path = "%s" }\n' "$name" "$CARGO_TARGET_DIR/package/$name-$version"
    done <<<"$published"
} >"$outside/Cargo.toml"
cp Cargo.lock "$outside"
if (cd "$outside" && cargo run --quiet); then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
