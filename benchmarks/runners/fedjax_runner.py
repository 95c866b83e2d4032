"""FedJAX 0.0.17: its ``for_each_client`` compiled by JAX, clipping and noise as in its examples.

Less work than ours: no projection within a client's training (the finished update is clipped), no
smoothing. Its models are written here, since it has none of these; logistic regression, both MLPs
and the CNN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from workloads import WORKLOADS, Workload, draw

from runners.measure import Rounds, parser

Params = dict[str, Any]
SHAPES = {
    "logistic": {"out": (784, 10)},
    "mlp": {"hidden": (784, 252), "out": (252, 10)},
    "gelu-mlp": {"hidden": (784, 252), "out": (252, 10)},
    "cnn": {
        **{"first": (5, 5, 3, 8), "second": (5, 5, 8, 16)},
        **{"hidden": (1024, 48), "narrow": (48, 24), "out": (24, 10)},
    },
}


def start(model: str) -> Params:
    """Weights of about the usual scale and biases of zero."""
    rng = np.random.default_rng(0)
    return {
        name: {
            "w": jnp.asarray(rng.normal(0, np.prod(shape[:-1]) ** -0.5, shape), jnp.float32),
            "b": jnp.zeros(shape[-1]),
        }
        for name, shape in SHAPES[model].items()
    }


def scores(model: str) -> Callable[[Params, jax.Array], jax.Array]:
    """The model as a function of its weights."""
    activation = jax.nn.gelu if model == "gelu-mlp" else jax.nn.relu

    def linear(layer: Params, x: jax.Array) -> jax.Array:
        return x @ layer["w"] + layer["b"]

    def convolution(layer: Params, x: jax.Array) -> jax.Array:
        shapes = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, layer["w"], (1, 1), "SAME", dimension_numbers=shapes)
        x = jax.nn.relu(x + layer["b"])
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def apply(params: Params, x: jax.Array) -> jax.Array:
        if "first" in params:
            x = convolution(params["second"], convolution(params["first"], x))
            x = x.reshape(len(x), -1)
        for name in ("hidden", "narrow"):
            x = activation(linear(params[name], x)) if name in params else x
        return linear(params["out"], x)

    return apply


def training(workload: Workload) -> Any:
    """Every client's clipped update: FedJAX's loop over clients, each step compiled once."""
    apply = scores(workload.model)

    def loss(params: Params, batch: Params) -> jax.Array:
        chosen = jnp.take_along_axis(jax.nn.log_softmax(apply(params, batch["x"])), batch["y"], 1)
        return -chosen.mean()

    def begin(shared: Params, _: Any) -> Params:
        return {"params": shared, "shared": shared}

    def step(state: Params, batch: Params) -> Params:
        slopes = jax.grad(loss)(state["params"], batch)
        rate = workload.learning_rate
        params = jax.tree_util.tree_map(lambda p, g: p - rate * g, state["params"], slopes)
        return {"params": params, "shared": state["shared"]}

    def end(_: Params, state: Params) -> Params:
        update = jax.tree_util.tree_map(jnp.subtract, state["params"], state["shared"])
        return fedjax.tree_util.tree_clip_by_global_norm(update, workload.clip_norm)

    return fedjax.for_each_client(begin, step, end)


def main() -> None:
    """Time the rounds of a workload."""
    given = parser().parse_args()
    workload = WORKLOADS[given.workload]
    rounds = Rounds(given.rounds or workload.rounds)
    features, targets = draw(workload)
    if workload.model == "cnn":
        features = np.ascontiguousarray(features.transpose(0, 1, 3, 4, 2))  # colours last
    people = [
        fedjax.ClientDataset({"x": x, "y": y[:, None]})
        for x, y in zip(features, targets, strict=True)
    ]
    params, train = start(workload.model), training(workload)
    rng, key = np.random.default_rng(1), jax.random.PRNGKey(1)
    stddev = workload.noise_multiplier * workload.clip_norm

    @jax.jit
    def finish(params: Params, total: Params, key: jax.Array) -> Params:
        leaves, tree = jax.tree_util.tree_flatten(total)
        keys = jax.random.split(key, len(leaves))
        pairs = zip(leaves, keys, strict=True)
        noisy = [leaf + stddev * jax.random.normal(k, leaf.shape) for leaf, k in pairs]
        direction = jax.tree_util.tree_unflatten(tree, noisy)
        return jax.tree_util.tree_map(lambda p, d: p + d / workload.cohort, params, direction)

    for number in range(rounds.total):
        cohort = rng.choice(workload.clients, workload.cohort, replace=False)
        batches = [
            people[j].shuffle_repeat_batch(
                batch_size=workload.batch, num_epochs=workload.epochs, seed=number
            )
            for j in cohort
        ]
        clients = [(int(j), own, None) for j, own in zip(cohort, batches, strict=True)]
        total = fedjax.tree_util.tree_sum(update for _, update in train(params, clients))
        key, own = jax.random.split(key)
        params = jax.block_until_ready(finish(params, total, own))
        rounds.done()


if __name__ == "__main__":
    main()
