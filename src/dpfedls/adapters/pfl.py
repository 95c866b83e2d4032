"""pfl (tried with 0.6.0): a postprocessor that denoises what its central mechanism made noisy."""

from __future__ import annotations

from typing import Any

from pfl.metrics import Metrics  # pyright: ignore[reportMissingImports]
from pfl.postprocessor import Postprocessor  # pyright: ignore[reportMissingImports]
from pfl.stats import MappedVectorStatistics  # pyright: ignore[reportMissingImports]

from dpfedls.adapters.stream import Stream
from dpfedls.denoising import AnyCallable
from dpfedls.errors import InputError

_NOISE = "DP noise std. dev."  # what pfl's mechanisms call the noise that they report


class Denoising(Postprocessor):
    """Stands *before* the mechanism in the list of postprocessors.

    pfl's server goes through them backwards, so noise is added first. Elsewhere the values are not
    noisy yet, and what a denoiser does to them could move them further than the noise covers: that
    is refused.
    """

    def __init__(self, denoiser: AnyCallable) -> None:
        self._stream = Stream(denoiser)

    def postprocess_server(
        self, *, stats: Any, central_context: Any, aggregate_metrics: Any
    ) -> tuple[Any, Any]:
        """Denoise the noisy sum."""
        told = [v.overall_value for n, v in aggregate_metrics if _NOISE in str(n)]
        if not told:
            raise InputError(
                "pfl's server reached the denoiser before any noise was added, and denoising "
                "earlier would break its ε; put Denoising before the privacy mechanism in the "
                "list: the server goes through it backwards"
            )
        tensors = dict(stats.items())
        denoised = self._stream(tensors, float(told[-1]))
        return MappedVectorStatistics(denoised, weight=stats.weight), Metrics()
