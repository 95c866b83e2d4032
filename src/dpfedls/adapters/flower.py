"""Flower's own DP strategies (1.41): the noisy update of a round, denoised.

``dpfedls.flower.DPFedLS`` is a strategy with sampling, ledger and accounting of its own; this is
for whoever stays with Flower's.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from dpfedls.adapters.stream import Stream
from dpfedls.denoising import AnyCallable
from dpfedls.errors import InputError


class Denoised(Strategy):
    """Wrap ``DifferentialPrivacy…Clipping``: the step from one model to the next is denoised.

    Only what that strategy has released is read, so ε stays what it says.
    """

    def __init__(self, strategy: Strategy, denoiser: AnyCallable) -> None:
        if not hasattr(strategy, "noise_multiplier"):
            raise InputError(
                f"{type(strategy).__name__} adds no noise, so there is nothing to denoise; wrap "
                "it in one of Flower's DifferentialPrivacy strategies first, then in Denoised"
            )
        self.strategy = strategy
        self._stream = Stream(denoiser)
        self._before: dict[str, torch.Tensor] = {}
        self._level = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Remember the model that this round starts from, and the noise that it will get."""
        self._before = _tensors(arrays)
        inner = self.strategy
        cohort = getattr(inner, "num_sampled_clients", 1)
        norm = getattr(inner, "clipping_norm", 0.0)
        self._level = getattr(inner, "noise_multiplier", 0.0) * norm / cohort
        return inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The wrapped strategy's model, its distance from the last one denoised."""
        arrays, metrics = self.strategy.aggregate_train(server_round, replies)
        if not arrays:
            return arrays, metrics
        after = _tensors(arrays)
        moved = {k: after[k] - self._before[k] for k in after if after[k].is_floating_point()}
        steps = self._stream(moved, self._level)
        kept = {k: self._before[k] + steps[k] if k in steps else after[k] for k in after}
        return ArrayRecord(kept), metrics  # pyright: ignore[reportArgumentType]

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the wrapped strategy does."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the wrapped strategy does."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """As the wrapped strategy does."""
        self.strategy.summary()


def _tensors(arrays: ArrayRecord) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(array.numpy()).clone() for name, array in arrays.items()}
