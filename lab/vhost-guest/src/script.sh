# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# What the guest does, after the beginning that all guests share.
export MIB
inside() { vhost-guest inside "$PEER" "$@"; }

load
ip link set lo up
n=0
until [ -e /sys/class/net/eth0 ]; do
    n=$((n + 1))
    [ $n -lt 600 ] || fail "no network card appears"
    sleep 0.1
done
ip addr add "$GUEST/24" dev eth0 && ip link set eth0 up || fail "cannot configure the network card"
until [ "$(cat /sys/class/net/eth0/carrier)" = 1 ]; do sleep 0.1; done
say "groups $(ls /sys/kernel/iommu_groups | wc -l) $(cat /sys/kernel/iommu_groups/*/type 2>/dev/null | sort -u | tr '\n' ' ')"

. /work
