"""Compare gradients through shared moments, in double precision, with those of one rank."""

import numpy as np
import tensorflow as tf

from gigatile.training.joining import join
from gigatile.training.normalisation import moments_over_ranks
from gigatile.training.ranks import Ranks

with join(cores=1, stall_limit=100) as ranks:
    k = [tf.constant(np.random.default_rng(i).normal(size=(3, 3, 4, 4)) / 6) for i in range(4)]

    def f(x, w, who, n):
        with tf.GradientTape() as t:
            t.watch(k)
            for i, c in enumerate(k):
                x = tf.nn.conv2d(x, c, 1, "SAME")
                m, v = moments_over_ranks(x, w, who, f"{n}/{i}")
                x = tf.nn.relu((x - m) / tf.sqrt(v + 1e-3))
            loss = tf.reduce_sum(
                tf.reduce_mean(x**3, (1, 2)) * tf.cast(w, tf.float64)[:, None] * [1.0, 2, -3, 0.5]
            )
        return t.gradient(loss, k)

    for n, total in enumerate((8, 6, 3)):
        x = np.random.default_rng(9 + n).normal(50, 3, (8, 6, 6, 4))
        w = (np.arange(8) < total).astype(np.float32)
        p = slice(ranks.rank * 8 // ranks.size, (ranks.rank + 1) * 8 // ranks.size)
        g = [
            ranks.sum(a.numpy(), f"g{n}{i}")
            for i, a in enumerate(
                tf.function(f)(tf.constant(x[p]), tf.constant(w[p]), ranks, f"b{n}")
            )
        ]
        h = f(tf.constant(x), tf.constant(w), Ranks(0, 1, 1), "a")
        if ranks.rank == 0:
            print(
                ranks.size,
                total,
                [
                    float(np.linalg.norm(a - b) / np.linalg.norm(b))
                    for a, b in zip(g, h, strict=True)
                ],
                flush=True,
            )
