# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Gives both devices to user space, and lets the driver say what it finds.
# A device whose unit has no driver yet waits for it, and no other driver may have it then.
meant() { echo vfio-pci >"/sys/bus/pci/devices/$1/driver_override"; }
give() {
    [ ! -e "/sys/bus/pci/devices/$1/driver" ] || echo "$1" >"/sys/bus/pci/devices/$1/driver/unbind"
    echo "$1" >/sys/bus/pci/drivers_probe
    [ -e "/sys/bus/pci/drivers/vfio-pci/$1" ] || fail "vfio-pci does not take $1"
}
# Status 1 is a report of something wrong, which the report says; 2 is none.
report() {
    layout=$1
    shift
    say phase "has a driver, $layout memory"
    said=$(ioatlas-nvme "$NVME" --memory "$layout" --pattern --instructions --json "$@" 2>&1)
    [ $? -lt 2 ] || fail "$said"
    say report "$said"
}
meant "$NVME"
meant "$EDU"
load
give "$NVME"
give "$EDU"
echo "$HUGE_PAGES" >/proc/sys/vm/nr_hugepages
say up "$(cut -d' ' -f1 /proc/uptime)"
report huge --edu "$EDU" --late 2 $HUGE_OPTIONS
report scattered $SCATTERED_OPTIONS
for policy in strict deferred-percpu; do
    report huge --domain-policy "$policy" $BURST_OPTIONS
done
said=$(ioatlas-nvme "$NVME" --space iommufd 2>&1)
[ $? -eq 2 ] || fail "--space iommufd: $said"
say refused "$said"
say done
end
