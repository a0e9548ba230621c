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

# Write a lock file: its name, what it is for, and the file with the wanted packages.
lock() {
    cp "envs/$1" "$work/" 2>/dev/null || true
    "$work/venv/bin/uv" pip compile --quiet --no-config --no-header --generate-hashes \
        --default-index https://pypi.org/simple --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
        --output-file "$work/$1" "${@:4}" "$3"
    {
        echo "# Every package of $2 at one version, with the checksums of its files. Written by \`make lock\`"
        echo '# from requirements.in for Python 3.11 on Linux; not to be edited by hand.'
        sed "s|$work/||" "$work/$1"
    } >"$work/whole"
    if cmp -s "$work/whole" "envs/$1"; then
        echo "envs/$1 is up to date"
    else
        cp "$work/whole" "envs/$1"
        echo "envs/$1 written"
    fi
}

lock requirements.lock .venv envs/requirements.in "$@"
# The same versions, with TensorFlow for CUDA.
{
    sed 's/^tensorflow-cpu==/tensorflow[and-cuda]==/' envs/requirements.in
    sed -n 's/^\([a-z0-9_.-]*==[^ ;\\]*\).*/\1/p' envs/requirements.lock | grep -v '^tensorflow-cpu=='
} >"$work/gpu.in"
lock requirements-gpu.lock 'an environment with CUDA' "$work/gpu.in" "$@"
