#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# ci/with-priority.sh COMMAND [ARGUMENT..]: runs it; with VHOST_PRIORITY=1, as root, so that other
# programs on the machine get what is left.
set -euo pipefail
if [ "${VHOST_PRIORITY:-0}" != 1 ]; then
    exec "$@"
fi
# A session of its own has a priority of its own, and is not told of a ^C.
# shellcheck disable=SC2016 # the inner shell's
setsid sh -c 'echo -20 2>/dev/null >/proc/self/autogroup || :; exec nice -n -20 "$@"' sh "$@" &
child=$!
trap 'kill -TERM "$child" 2>/dev/null || :' HUP INT TERM
status=0
wait "$child" || status=$?
# a signal ends the wait, not the child
while kill -0 "$child" 2>/dev/null; do
    status=0
    wait "$child" || status=$?
done
exit "$status"
