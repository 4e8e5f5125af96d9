#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Everything that the gate (.ci/run) leaves out: packages, guests, other people's programs, rates,
# counted instructions, fresh input, the optimised suite, planted bugs. By hand, before something is
# called done that one of its stages is about. Installs what is missing (Debian, as root). Goes on
# after a failure; how it counts, and how it ends: ci/stages.sh.
#
#   ci/full.sh [--record] [STAGE..]     all stages, or those named
#   ci/full.sh --list                   their names, and what each does
#
# --record writes what it saw into docs/last-full-run.md: each stage with date, commit and machine;
# stages that did not run keep the lines that they have there.
set -euo pipefail
cd "$(dirname "$0")/.."

all='
oldest           the oldest Rust that Cargo.toml and README promise compiles all there is
other-machines   core and drivers for three bare machines; tests of core and vhost as aarch64 programs
packages         what is published is packaged, and compiled from its packages
semver           no program breaks by what the libraries show, by cargo-semver-checks
nvme-guests      NVMe driver over VFIO in Debian guests under QEMU, on VT-d and on virtio-iommu
recording        a guest is booted and recorded
capture          doctor, capture, bpftrace and report in guests, compared with what their programs did
vhost-guest      a Debian guest on vhost-net: IOMMU off, pass-through, strict
vhost-testpmd    the same with DPDK in the guest, each frame compared
compare          vhost-net beside testpmd, in turns
vhost-minute     vhost-net under the generator in each mode, notified and polling
soak             vhost-net among hostile front ends and guests, half a minute, or IOATLAS_SOAK_SECONDS
silent-files     vhost, vhost-net: files of a file system that never answers (root, /dev/fuse)
browser          the page of the report in Chromium
timing           measurements of real threads, with real patience
optimised        the suites with threads and unsafe code, optimised, fresh seeds for property tests
fuzzing          each fuzz target, ten seconds of fresh input
instructions     instructions a pair, against ci/instructions.budget
shared-lines     the simulated machine: cache lines that CPUs share, against the count
planted-bugs     each bug planted in the core is killed by its test
planted-in-unit  those planted in the VT-d driver are seen by the units that can see them
explored-bugs    the explorer of schedules finds them
'
record= names=
for argument; do
    case $argument in
    --record) record=yes ;;
    --list)
        sed '/^$/d' <<<"$all"
        exit
        ;;
    *)
        if ! grep -q "^$argument " <<<"$all"; then
            sed -n '3,12s/^# \{0,1\}//p' "$0" >&2
            echo "no stage of it: $argument" >&2
            exit 2
        fi
        names="$names $argument"
        ;;
    esac
done
[ -n "$names" ] || names=$(awk 'NF { printf "%s ", $1 }' <<<"$all")

. ci/stages.sh
commit=$(git rev-parse --short HEAD)
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_RELEASE_DEBUG=0
packages=${XDG_CACHE_HOME:-$HOME/.cache}/ioatlas/packages

# tools NAME..: installs what these stages need. Each is tried, so that one that fails does not look
# like all.
tools() {
    local bad=0 name
    rust_tools || return 1
    needs cc ci/install-linker.sh || bad=1
    for name; do
        case $name in
        nvme-guests | recording | vhost-guest | vhost-testpmd)
            compgen -G "$packages/linux-image-*[0-9]-amd64_*.unpacked-4" >/dev/null || ci/install-record.sh || bad=1
            ;;&
        nvme-guests)
            { command -v xz && compgen -G "$packages/linux-image-6.12.*-cloud-amd64_*.unpacked-4" &&
                compgen -G "$packages/libgcc-s1_*.unpacked-4"; } >/dev/null || ci/install-kernel.sh || bad=1
            ;;
        capture)
            { command -v qemu-system-x86_64 && command -v xz && compgen -G "${packages%/*}/capture-packages/linux-image-6.12.*-amd64_*.unpacked-4" &&
                compgen -G "${packages%/*}/capture-packages/bpftrace_*.unpacked-4"; } >/dev/null || ci/install-capture.sh || bad=1
            ;;
        vhost-testpmd | compare)
            { command -v dpdk-testpmd && compgen -G "$packages/librte-net-virtio*.unpacked-4"; } >/dev/null ||
                ci/install-dpdk.sh || bad=1
            ;;
        other-machines)
            { command -v qemu-aarch64 && command -v aarch64-linux-gnu-gcc; } >/dev/null || ci/install-aarch64.sh || bad=1
            ;;
        optimised | planted-in-unit) needs qemu-system-x86_64 ci/install-qemu.sh || bad=1 ;;
        silent-files) [ -c /dev/fuse ] || modprobe fuse || bad=1 ;;
        browser) needs chromium ci/install-browser.sh || bad=1 ;;
        instructions) needs valgrind ci/install-valgrind.sh || bad=1 ;;
        esac
    done
    return $bad
}

# Property tests draw a new seed each time. Where one fails, the seed is printed; some write the
# case into a file proptest-regressions/, to be committed.
optimised() {
    PROPTEST_RNG_SEED=$(od -An -N7 -tu8 /dev/urandom | tr -d ' ')
    export PROPTEST_RNG_SEED
    echo "PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED"
    cargo test --release --no-fail-fast -p ioatlas-dma -p ioatlas-host -p ioatlas-sim -p ioatlas-vtd -p ioatlas-viommu \
        -p ioatlas-vhost -p ioatlas-vhost-net -p ioatlas-vfio -p ioatlas-iotlb
}
oldest() {
    local promised
    promised=$(sed -nE 's/^rust-version = "([0-9.]+)"$/\1/p' Cargo.toml)
    grep -qF "Rust $promised or newer" README.md || { echo "README.md does not say: Rust $promised or newer"; return 1; }
    rustup run "$promised" rustc --version || rustup toolchain install "$promised" --profile minimal || return 1
    # a folder of its own, for it can use nothing of another compiler's
    CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/oldest cargo "+$promised" check --workspace --all-targets
}
fuzzing() {
    IOATLAS_FUZZ_SECONDS=10 cargo test -p ioatlas-fuzz-targets --no-fail-fast --test it -- --nocapture
}

# What is in docs/last-full-run.md, with a new line for each stage that ran.
recorded() {
    local page=docs/last-full-run.md machine
    [ -z "$tree_before" ] || commit="$commit and changes"
    machine=$(nproc)-CPU$(sed -n 's/^model name[^:]*: */ /p' /proc/cpuinfo | head -n 1)
    {
        echo '# The last full run'
        echo
        echo 'What `ci/full.sh --record` saw, by stage; `ci/full.sh --list` says what each does. Written by the
command, not by hand.'
        echo
        echo '| stage | result | passed | failed | seconds | date | commit | machine |'
        echo '|---|---|--:|--:|--:|---|---|---|'
        for name in $(awk 'NF { print $1 }' <<<"$all"); do
            awk -F '\t' -v name="$name" -v date="$(date +%F)" -v commit="$commit" -v machine="$machine" '
                $1 == name { printf "| %s | %s | %d | %d | %d | %s | %s | %s |\n", name, $2, $4, $5, $3, date, commit, machine; found = 1 }
                END { exit !found }' "$logs/table" || grep "^| $name |" $page 2>/dev/null || true
        done
    } >"$logs/page"
    cp "$logs/page" $page
    echo "recorded in $page"
}

# shellcheck disable=SC2086 # names are words
stage tools tools $names
only="$names clean-tree"
stage oldest oldest
stage other-machines ci/other-machines.sh
stage packages ci/package.sh
stage semver ci/semver.sh
stage nvme-guests cargo test -p ioatlas-nvme --test guest -- --include-ignored
stage recording cargo test -p ioatlas-cli --test tools -- --include-ignored record:
stage capture cargo test -p ioatlas-cli --test tools -- --include-ignored capture:
stage vhost-guest ci/vhost-guest.sh
stage vhost-testpmd ci/vhost-guest.sh --guest testpmd
stage compare cargo test -p ioatlas-experiments --test vhost_compare -- --include-ignored
stage vhost-minute ci/vhost-minute.sh
stage soak cargo test -p ioatlas-cli --test it -- --include-ignored --nocapture soak::
stage silent-files cargo test -p ioatlas-vhost -p ioatlas-cli --test it -- --include-ignored never_answers
stage browser cargo test -p ioatlas-cli --test tools -- --include-ignored browser:
stage timing cargo test -p ioatlas-bench --test it -- --include-ignored measuring::
stage optimised optimised
stage fuzzing fuzzing
stage instructions ci/instructions.sh
stage shared-lines ci/lines-check.sh
stage planted-bugs ci/mutants.sh
stage planted-in-unit ci/unit-mutants.sh
stage explored-bugs ci/explore-mutants.sh
stage clean-tree clean_tree
[ -z "$record" ] || recorded
closing
