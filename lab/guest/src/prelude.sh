#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Begins what runs in each guest. /config says what to do; what the watching program should know
# goes to the console in lines "ioatlas: ..".
/bin/busybox --install -s /bin
export PATH=/bin:/programs LD_LIBRARY_PATH=/lib
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp

say() { echo "ioatlas: $*"; }
end() { poweroff -f; }
fail() {
    say "failed: $*"
    end
}
# Loads the modules of the image, each after those that it needs. $PARAMETERS_name, with _ for -, are its parameters.
load() {
    while read -r module; do
        eval "parameters=\$PARAMETERS_${module%.ko}"
        insmod "/modules/$module" $parameters || fail "cannot load $module"
    done </modules/order
}

. /config
say "kernel $(uname -r)"
