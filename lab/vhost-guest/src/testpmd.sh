# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# What a guest does whose card is DPDK's, after the beginning that all guests share: gives the card to VFIO, and has testpmd driven.
load
card=
for device in /sys/bus/pci/devices/*; do
    # virtio 1.2, 4.1.2: a network card of version 1
    [ "$(cat "$device/vendor") $(cat "$device/device")" = "0x1af4 0x1041" ] && card=$device
done
[ -n "$card" ] || fail "no network card appears"
[ -e "$card/iommu_group" ] || fail "the card is behind no IOMMU"
echo vfio-pci >"$card/driver_override"
echo "${card##*/}" >/sys/bus/pci/drivers_probe
[ -e "$card/driver" ] || fail "VFIO does not take the card"
# DPDK loads nothing from below a directory that every user may write to
chmod 755 /
mkdir -p /dev/hugepages /dev/pts /var/run
mount -t devpts devpts /dev/pts || fail "cannot mount terminals"
if [ "$PAGES" = 2m ]; then
    echo "$HUGEPAGES" >/proc/sys/vm/nr_hugepages
    [ "$(cat /proc/sys/vm/nr_hugepages)" = "$HUGEPAGES" ] || fail "no $HUGEPAGES hugepages"
    mount -t hugetlbfs none /dev/hugepages || fail "cannot mount hugepages"
fi
say "phase runs testpmd"
vhost-guest testpmd "${card##*/}" --pages "$PAGES" --seconds "$SECONDS_OF_RATE" --patience "$PATIENCE" $DRIVERS || end
say done
end
