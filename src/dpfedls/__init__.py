"""Differentially private federated learning with Laplacian smoothing (arXiv:2005.00218)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfedls.auditing.training import audit as audit
    from dpfedls.denoisers import AdaptiveSmoothing as AdaptiveSmoothing
    from dpfedls.denoisers import JamesStein as JamesStein
    from dpfedls.denoisers import LaplacianSmoothing as LaplacianSmoothing
    from dpfedls.denoisers import Momentum as Momentum
    from dpfedls.denoisers import SoftThreshold as SoftThreshold
    from dpfedls.denoisers import smooth as smooth
    from dpfedls.denoisers.chain import chain as chain
    from dpfedls.denoising import Identity as Identity
    from dpfedls.errors import BudgetExhausted as BudgetExhausted
    from dpfedls.errors import InputError as InputError
    from dpfedls.gaussian import Release as Release
    from dpfedls.local_sgd import LocalSGD as LocalSGD
    from dpfedls.people.clients import ClientData as ClientData
    from dpfedls.people.lazy import LazyClients as LazyClients
    from dpfedls.people.rescale import Rescale as Rescale
    from dpfedls.people.survey import Measured as Measured
    from dpfedls.privacy.clipping import AdaptiveClipping as AdaptiveClipping
    from dpfedls.privacy.plan import PrivacyPlan as PrivacyPlan
    from dpfedls.runs.load import load as load
    from dpfedls.runs.loggers import CsvLogger as CsvLogger
    from dpfedls.runs.loggers import MlflowLogger as MlflowLogger
    from dpfedls.runs.loggers import TensorBoardLogger as TensorBoardLogger
    from dpfedls.runs.record import Result as Result
    from dpfedls.runs.record import RoundRecord as RoundRecord
    from dpfedls.runs.train import train as train
    from dpfedls.sampling import FixedSizeSampling as FixedSizeSampling
    from dpfedls.sampling import PoissonSampling as PoissonSampling
    from dpfedls.stepping import NoiseRate as NoiseRate
    from dpfedls.tasks.convert import prepare as prepare
    from dpfedls.tasks.convert import replace_batch_norm as replace_batch_norm
    from dpfedls.tasks.task import Task as Task
    from dpfedls.theory import effective_dimension as effective_dimension

__version__ = "0.1.0"

# Loaded when first asked for (PEP 562), so that `import dpfedls` is instant and loads no torch.
_HOMES = {
    "auditing.training": ("audit",),
    "denoisers": (
        "AdaptiveSmoothing",
        "JamesStein",
        "LaplacianSmoothing",
        "Momentum",
        "SoftThreshold",
        "smooth",
    ),
    "denoisers.chain": ("chain",),
    "denoising": ("Identity",),
    "errors": ("BudgetExhausted", "InputError"),
    "gaussian": ("Release",),
    "local_sgd": ("LocalSGD",),
    "people.clients": ("ClientData",),
    "people.lazy": ("LazyClients",),
    "people.rescale": ("Rescale",),
    "people.survey": ("Measured",),
    "privacy.clipping": ("AdaptiveClipping",),
    "privacy.plan": ("PrivacyPlan",),
    "runs.load": ("load",),
    "runs.loggers": ("CsvLogger", "MlflowLogger", "TensorBoardLogger"),
    "runs.record": ("Result", "RoundRecord"),
    "runs.train": ("train",),
    "sampling": ("FixedSizeSampling", "PoissonSampling"),
    "stepping": ("NoiseRate",),
    "tasks.convert": ("prepare", "replace_batch_norm"),
    "tasks.task": ("Task",),
    "theory": ("effective_dimension",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'dpfedls' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dpfedls.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
