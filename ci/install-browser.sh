#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# Installs a browser for looking at the report's page (Debian and its kin; needs root):
#   chromium --headless --no-sandbox --screenshot=page.png --window-size=1200,3000 report.html
# adds --blink-settings=preferredColorScheme=0 for dark, 1 for light.
set -eu
apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 update
apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 install -y --no-install-recommends chromium fonts-dejavu-core
