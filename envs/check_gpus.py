#!/usr/bin/env python3
"""Check the GPUs of this machine in a few minutes: run by `make check-gpu`.

One rank per GPU is started, as a training would. Each line says what was checked, and what was
measured; the exit status is 0 if all is well. With `--cpu`, the same checks run without GPUs, which
shows that the environment works, and not how fast it is.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

# Side of a tile and samples of a rank, on a GPU and on a processor.
ON_GPU, ON_CPU, CLASSES = (224, 32), (64, 8), 2
# Seconds: of all checks, and without an answer of another rank.
LIMIT, STALL_LIMIT = 900, 120
MISSING = re.compile(r"Could not load dynamic library '([^']+)'")


class Fault(Exception):
    """What is wrong, and what to do."""


def count_gpus() -> int:
    """Return the number of GPUs that TensorFlow sees, asked in a separate process."""
    program = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"
    # The loader of NVIDIA's libraries names the missing ones at this level only.
    levels = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "dso_loader=1"}
    line = [sys.executable, "-c", program]
    try:
        done = subprocess.run(
            line, env=os.environ | levels, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        raise Fault(f"no answer of the GPUs after {LIMIT} s; does `nvidia-smi` answer?") from None
    if done.returncode:
        raise Fault(f"TensorFlow cannot be imported: {done.stderr.strip().splitlines()[-1]}")
    number = int(done.stdout.split()[-1])
    if not number and "Cannot dlopen some GPU libraries" in done.stderr:
        names = dict.fromkeys(MISSING.findall(done.stderr))
        raise Fault(
            "TensorFlow uses no GPU, because it cannot load libraries of NVIDIA:"
            f" {', '.join(names) or 'see its messages'}; make the environment again, or name their"
            " folders in LD_LIBRARY_PATH"
        )
    return number


def start_ranks(number: int, on_cpu: bool) -> int:
    """Start a rank per GPU; return the status of the launcher."""
    from gigatile.parallel.launch import Layout, environment

    cores = max(1, len(os.sched_getaffinity(0)) // number)
    line = ["mpirun", "-n", str(number), sys.executable, __file__, "--rank", "--cores", str(cores)]
    variables = environment(os.environ, Layout(1, number, cores), None)
    if on_cpu:
        line.append("--cpu")
        variables["CUDA_VISIBLE_DEVICES"] = ""
    try:
        return subprocess.run(line, env=variables, timeout=LIMIT).returncode
    except FileNotFoundError:
        raise Fault("mpirun is not on the PATH; load the module of your MPI") from None
    except subprocess.TimeoutExpired:
        raise Fault(f"no end after {LIMIT} s; the ranks cannot reach each other") from None


def run_rank(cores: int, on_cpu: bool) -> None:
    """Do all checks in a rank."""
    from gigatile.training.startup import join_ranks

    with join_ranks(cores, STALL_LIMIT) as ranks:
        for check in checks(ranks, on_cpu):
            text = check()
            if ranks.writes:
                print(f"ok       {text}", flush=True)


def checks(ranks, on_cpu: bool) -> Iterator[Callable[[], str]]:
    """Yield the checks, which return a line of text and raise AssertionError."""
    import horovod.tensorflow as hvd
    import numpy as np
    import tensorflow as tf

    from gigatile.models.classifier import build_classifier
    from gigatile.settings.tiles import TileSettings
    from gigatile.settings.train import TrainSettings
    from gigatile.tasks.tile_classification.training import TileClassification
    from gigatile.training.batches import Batch
    from gigatile.training.learner import Learner

    device = "/CPU:0" if on_cpu else "/GPU:0"
    side, samples = ON_CPU if on_cpu else ON_GPU

    def gpus() -> str:
        if on_cpu:
            return f"{ranks.size} rank(s) on the processor; no GPU was asked for"
        own = tf.config.get_visible_devices("GPU")
        assert len(own) == 1, f"{ranks.name} sees {len(own)} GPUs, not its own"
        details = tf.config.experimental.get_device_details(own[0])
        numbers = ranks.gather(np.array([int(own[0].name.rpartition(":")[2])]), "gpus").ravel()
        assert hvd.size() != hvd.local_size() or len(set(numbers)) == ranks.size, (
            f"ranks share a GPU: {numbers.tolist()}"
        )
        capability = ".".join(map(str, details.get("compute_capability", ())))
        name = details.get("device_name", "a GPU")
        return f"{ranks.size} rank(s), each on one GPU; {name}, compute capability {capability}"

    def allreduce() -> str:
        assert on_cpu or hvd.nccl_built(), (
            "Horovod was built without NCCL; gradients would go through the processor"
        )
        length = 100_000 if on_cpu else 64_000_000
        with tf.device(device):
            values = tf.range(length, dtype=tf.float32) % 1024 + ranks.rank
            rounds = 5
            for number in range(rounds + 1):
                if number == 1:  # the first one sets up the connections
                    start = time.perf_counter()
                (total,) = ranks.sum_in_step([values])
                last = float(total[-1])
            seconds = (time.perf_counter() - start) / rounds
            expected = tf.range(length, dtype=tf.float32) % 1024 * ranks.size
            expected += sum(range(ranks.size))
            wrong = int(tf.math.count_nonzero(total != expected))
        assert wrong == 0, f"{wrong} of {length} sums are wrong (the last is {last})"
        how = "NCCL" if hvd.nccl_built() and not on_cpu else "MPI"
        if ranks.size == 1:
            return f"allreduce by {how}: exact; one rank has nobody to exchange with"
        # Of the slowest link of a ring, as in NCCL's own tests.
        bandwidth = 2 * (ranks.size - 1) / ranks.size * 4 * length / seconds / 1e9
        return f"allreduce by {how}: exact; bus bandwidth {bandwidth:.1f} GB/s"

    def precision() -> str:
        width = 512 if on_cpu else 4096
        generator = tf.random.Generator.from_seed(1)
        with tf.device(device):
            single = generator.normal((width, width)) / width**0.5
            half = tf.cast(single, tf.float16)
            rates = []
            for matrix in (single, half):
                float(tf.reduce_sum(matrix @ matrix))
                start = time.perf_counter()
                for _ in range(5):
                    product = matrix @ matrix
                float(tf.reduce_sum(product))
                rates.append(5 * 2 * width**3 / (time.perf_counter() - start) / 1e12)
            difference = float(
                tf.reduce_max(tf.abs(tf.cast(product, tf.float32) - single @ single))
            )
        assert difference < 0.05, f"half precision differs by {difference:.3f}"
        return (
            f"half precision: differs by {difference:.4f} at most; {rates[1]:.2f} TFLOP/s, single"
            f" precision {rates[0]:.2f}"
        )

    def train(mixed: bool) -> Callable[[], str]:
        def trained() -> str:
            settings = TrainSettings(
                model="small_cnn" if on_cpu else "resnet50",
                ranks_per_node=ranks.size,
                batch_size=samples * ranks.size,
                mixed_precision="float16" if mixed else "off",
            )
            network = build_classifier(settings, side, CLASSES).trained
            learner = Learner(network, TileClassification(TileSettings()), settings, ranks)
            ranks.broadcast_variables(learner.variables, f"start-{mixed}")
            # Other samples on each rank, so that equal weights show that gradients were exchanged.
            random = np.random.default_rng(ranks.rank)
            images = random.integers(0, 255, (samples, side, side, 3), np.uint8)
            labels = random.integers(0, CLASSES, samples).astype(np.int32)
            weights_of_samples = np.ones(samples, np.float32)
            batch = Batch(images, labels, weights_of_samples, settings.batch_size, 0, 0)
            inputs = tf.convert_to_tensor(images)
            before = np.concatenate([np.ravel(w) for w in network.get_weights()])
            steps = 3 if on_cpu else 20
            for number in range(steps + 2):
                if number == 2:  # the first ones build the graph
                    start = time.perf_counter()
                sums = learner.step(batch, inputs, np.zeros(1, np.float32), 1e-4).sums
            seconds = (time.perf_counter() - start) / steps
            weights = np.concatenate([np.ravel(w) for w in network.get_weights()])
            everyone = ranks.gather(weights, f"weights-{mixed}")
            assert np.isfinite(sums).all(), f"the loss of {ranks.name} is {sums[0]}"
            assert (weights != before).any(), "no weight has changed"
            assert (everyone == weights).all(), "the weights of the ranks differ"
            kind = "mixed" if mixed else "single"
            return (
                f"training of {settings.model} in {kind} precision: ranks have equal weights;"
                f" {settings.batch_size / seconds:.0f} tiles/s of {side} px"
            )

        return trained

    yield from (gpus, allreduce, precision, train(mixed=False), train(mixed=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="without GPUs")
    parser.add_argument("--ranks", type=int, help="with --cpu: number of ranks (2)", default=2)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if args.rank:
        run_rank(args.cores, args.cpu)
        return 0
    try:
        number = args.ranks if args.cpu else count_gpus()
        if not number:
            raise Fault(
                "TensorFlow sees no GPU: is this a GPU node (`nvidia-smi`), and the environment"
                " that of envs/gpu.yaml? To check everything else, add --cpu"
            )
        status = start_ranks(number, args.cpu)
        if status:
            raise Fault(f"a check failed (status {status}); see above and docs/gpus.md")
    except Fault as fault:
        print(f"missing  {fault}", file=sys.stderr)
        return 1
    print(f"All checks passed on {number} {'rank(s) without GPUs' if args.cpu else 'GPU(s)'}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
