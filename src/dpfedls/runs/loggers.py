"""Watchers that write a run where people already look. Give one to ``train(watch=[…])``."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

from dpfedls.errors import InputError, unknown
from dpfedls.runs.record import RoundRecord
from dpfedls.tasks import own


def values_of(record: RoundRecord) -> dict[str, float]:
    """All numbers of a round by name; what is not there is left out."""
    numbers = {
        "epsilon": record.epsilon,
        "clip_norm": record.clip_norm,
        "server_rate": record.server_rate,
        **record.metrics,
    }
    return {name: value for name, value in numbers.items() if value is not None}


class CsvLogger:
    """One line per round in a CSV file, whose columns are those of the first round."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = Path(path).open("w", newline="", encoding="utf-8")  # noqa: SIM115
        self._writer: csv.DictWriter[str] | None = None

    def __call__(self, record: RoundRecord) -> None:
        row = {"round": record.round, **values_of(record)}
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, list(row), extrasaction="ignore")
            self._writer.writeheader()
        self._writer.writerow(row)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardLogger:
    """Scalars for TensorBoard; needs the package tensorboard."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard") from error
        self._writer: Any = SummaryWriter(str(folder))

    def __call__(self, record: RoundRecord) -> None:
        for name, value in values_of(record).items():
            self._writer.add_scalar(name, value, record.round)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class MlflowLogger:
    """Metrics of MLflow's active run, or of a new one; needs the package mlflow."""

    def __init__(self) -> None:
        try:
            import mlflow  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise _missing("mlflow") from error
        self._mlflow: Any = mlflow

    def __call__(self, record: RoundRecord) -> None:
        self._mlflow.log_metrics(values_of(record), step=record.round)


def named_logger(name: str, folder: Path) -> Any:
    """The logger of that name for the run of a folder; its files lie beside the folder.

    A package registers its own as an entry point of dpfedls.loggers: a function of the folder.
    """
    known = {
        "csv": lambda folder: CsvLogger(folder.with_name(f"{folder.name}.csv")),
        "mlflow": lambda _: MlflowLogger(),
        "tensorboard": lambda folder: TensorBoardLogger(f"{folder}-tensorboard"),
    }
    if name in known:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return known[name](folder)
    place = own.registered("loggers", name)
    if not own.is_own(place):
        raise unknown("logger", name, known)
    return own.load(place, "--log")(folder)


def _missing(package: str) -> InputError:
    return InputError(
        f"this logger needs the package {package}, which is not installed; run: pip install "
        f"'dpfedls[{package}]'"
    )
