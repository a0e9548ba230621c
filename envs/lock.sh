#!/usr/bin/env bash
# Writes requirements.lock from requirements.in; run by `make lock`.
#
# Versions already in the lock file stay where they still fit; --upgrade moves all to the newest.
# The packages and their checksums are PyPI's own, whatever indexes this machine's pip may know.
set -euo pipefail

cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python
if [[ ! -x $python ]]; then python=python3.11; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check uv==0.13.8

cp envs/requirements.lock "$work/" 2>/dev/null || true
"$work/venv/bin/uv" pip compile --quiet --no-config --no-header --generate-hashes \
    --default-index https://pypi.org/simple --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
    --output-file "$work/requirements.lock" "$@" envs/requirements.in
{
    echo '# Every package of .venv at one version, with the checksums of its files. Written by `make lock`'
    echo '# from requirements.in for Python 3.11 on Linux; not to be edited by hand.'
    cat "$work/requirements.lock"
} >"$work/whole"
if cmp -s "$work/whole" envs/requirements.lock; then
    echo "envs/requirements.lock is up to date"
else
    cp "$work/whole" envs/requirements.lock
    echo "envs/requirements.lock written; make setup installs it"
fi
