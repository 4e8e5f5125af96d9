# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Traffic, a new back end in the middle of it, and all again after a reboot.
boots=$(inside boots) || end
say "phase moves data, boot $boots"
say "ping $(ping -q -c 20 -i 0.05 -W 60 -s 1400 "$PEER" | grep transmitted)"
inside traffic || end
if [ "$boots" = 1 ]; then
    say "phase gets a new back end"
    inside restart || end
    say "phase reboots"
    reboot -f
fi
say done
end
