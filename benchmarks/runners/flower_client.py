"""What a Flower client does: the plain loop's training; for logistic regression, NumPy's.

A module of its own, so that Ray's workers import it once and keep what it caches; a function of the
main script would be sent to them anew with every message.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from workloads import WORKLOADS, Workload, draw

from runners import logistic

app = ClientApp()
Trainer = Callable[[list[np.ndarray], np.ndarray, np.ndarray, Workload], list[np.ndarray]]


@app.train()
def answer(message: Message, context: Context) -> Message:
    """Train from the server's weights; answer with one's own."""
    name = str(message.content["config"]["workload"])
    client = int(context.node_config["partition-id"])
    features, targets = _data(name)
    centre = message.content["arrays"].to_numpy_ndarrays()
    trained = _trainer(name)(centre, features[client], targets[client], WORKLOADS[name])
    reply = RecordDict(
        {
            "arrays": ArrayRecord(trained),
            "metrics": MetricRecord({"num-examples": WORKLOADS[name].samples}),
        }
    )
    return Message(reply, reply_to=message)


@functools.cache
def _data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Everybody's data, drawn once in a worker."""
    return draw(WORKLOADS[name])


@functools.cache
def _trainer(name: str) -> Trainer:
    if WORKLOADS[name].model == "logistic":
        return logistic.train
    import torch  # not by workers that need none of it

    from runners import loop
    from runners.models import make_model

    flat = loop.FlatModel(make_model(WORKLOADS[name].model))

    def train(
        centre: list[np.ndarray], features: np.ndarray, targets: np.ndarray, workload: Workload
    ) -> list[np.ndarray]:
        start = torch.cat([torch.from_numpy(array).reshape(-1) for array in centre])
        flat.weights.copy_(start)
        loop.train(flat, start, torch.from_numpy(features), torch.from_numpy(targets), workload)
        return [parameter.detach().numpy() for parameter in flat.model.parameters()]

    return train
