#!/usr/bin/env bash
# Installs the programs that tests need (a SLURM cluster, a browser, strace, an object store) if they
# are missing, as root on Debian. Elsewhere it does nothing, and the tests say why they are skipped.
set -euo pipefail

readonly PACKAGES=(slurm-wlm slurmdbd slurm-wlm-mysql-plugin mariadb-server munge
    # SLURM opens libpmix.so, which only this one brings.
    libpmix-dev iproute2 procps
    # Shows which files a job opens: tests/workflow/opened.py.
    strace
    # Opens pages of the report: tests/browser.py.
    chromium chromium-driver
    # An S3 store: tests/object_store.py.
    ceph-mon ceph-osd radosgw ceph-common)

((EUID == 0)) && [[ -r /etc/debian_version ]] && command -v apt-get >/dev/null || exit 0
missing=()
for package in "${PACKAGES[@]}"; do
    [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
        missing+=("$package")
done
((${#missing[@]})) || exit 0

echo "installing for the tests: ${missing[*]}"
# Debian starts a service as soon as it is installed, and at every boot; nothing of this is to run
# but in the cluster's own namespaces.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
for unit in mariadb munge slurmctld slurmd slurmdbd; do
    [[ " ${missing[*]} " != *" ${unit/slurm*/slurm}"* ]] || systemctl disable --quiet "$unit" 2>/dev/null || true
done
