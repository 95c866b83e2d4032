"""Differentially private federated learning with Laplacian smoothing (arXiv:2005.00218)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfedls.denoising import Identity as Identity
    from dpfedls.denoising import JamesStein as JamesStein
    from dpfedls.denoising import LaplacianSmoothing as LaplacianSmoothing
    from dpfedls.denoising import SoftThreshold as SoftThreshold
    from dpfedls.denoising import smooth as smooth
    from dpfedls.errors import BudgetExhausted as BudgetExhausted
    from dpfedls.errors import InputError as InputError
    from dpfedls.gaussian import Release as Release
    from dpfedls.local_sgd import LocalSGD as LocalSGD
    from dpfedls.people.clients import ClientData as ClientData
    from dpfedls.people.lazy import LazyClients as LazyClients
    from dpfedls.privacy.plan import PrivacyPlan as PrivacyPlan
    from dpfedls.runs.record import Result as Result
    from dpfedls.runs.train import train as train
    from dpfedls.sampling import FixedSizeSampling as FixedSizeSampling
    from dpfedls.sampling import PoissonSampling as PoissonSampling
    from dpfedls.tasks.convert import prepare as prepare
    from dpfedls.tasks.convert import replace_batch_norm as replace_batch_norm
    from dpfedls.theory import effective_dimension as effective_dimension

__version__ = "0.1.0"
__all__ = [
    "BudgetExhausted",
    "ClientData",
    "FixedSizeSampling",
    "Identity",
    "InputError",
    "JamesStein",
    "LaplacianSmoothing",
    "LazyClients",
    "LocalSGD",
    "PoissonSampling",
    "PrivacyPlan",
    "Release",
    "Result",
    "SoftThreshold",
    "effective_dimension",
    "prepare",
    "replace_batch_norm",
    "smooth",
    "train",
]

# Loaded when first asked for (PEP 562), so that `import dpfedls` is instant and loads no torch.
_HOMES = {
    "BudgetExhausted": "errors",
    "ClientData": "people.clients",
    "FixedSizeSampling": "sampling",
    "Identity": "denoising",
    "InputError": "errors",
    "JamesStein": "denoising",
    "LaplacianSmoothing": "denoising",
    "LazyClients": "people.lazy",
    "LocalSGD": "local_sgd",
    "PoissonSampling": "sampling",
    "PrivacyPlan": "privacy.plan",
    "Release": "gaussian",
    "Result": "runs.record",
    "SoftThreshold": "denoising",
    "effective_dimension": "theory",
    "prepare": "tasks.convert",
    "replace_batch_norm": "tasks.convert",
    "smooth": "denoising",
    "train": "runs.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpfedls' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dpfedls.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
