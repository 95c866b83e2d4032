"""Watchers that write a run where people already look. Give one to ``train(watch=[…])``."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dpfedls.errors import InputError, unknown
from dpfedls.runs.record import RoundRecord
from dpfedls.tasks import own
from dpfedls.tasks.task import COLUMNS


def values_of(record: RoundRecord) -> dict[str, float]:
    """All numbers of a round by name; what is not there is left out."""
    every = {name: getattr(record, name) for name in COLUMNS if name not in ("round", "seconds")}
    return {name: value for name, value in (every | record.metrics).items() if value is not None}


class CsvLogger:
    """One line per round in a CSV file, with a column for everything that any round has.

    A run that goes on after a crash has the rounds before it in the file, too.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._rows: list[dict[str, float]] = []
        self._columns: list[str] = []

    def start(self, run: Any) -> None:
        """Write the rounds that were made before."""
        self._rows = [_row(record) for record in run.history]
        self._rewrite()

    def __call__(self, record: RoundRecord) -> None:
        row = _row(record)
        self._rows.append(row)
        if set(row) <= set(self._columns):
            self._write("a", [row])
        else:
            self._rewrite()

    def _rewrite(self) -> None:
        """The whole file, since a header stands before all rows."""
        self._columns = list(dict.fromkeys(name for row in self._rows for name in row))
        self._write("w", [dict(zip(self._columns, self._columns, strict=True)), *self._rows])

    def _write(self, mode: Literal["a", "w"], rows: Sequence[Mapping[str, object]]) -> None:
        with self._path.open(mode, newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerows(rows if self._columns else [])


def _row(record: RoundRecord) -> dict[str, float]:
    return {"round": record.round, **values_of(record)}


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
            self._writer.add_scalar(name, value, record.round, walltime=_moment(record))

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
        run = self._mlflow.active_run() or self._mlflow.start_run()
        for name, value in values_of(record).items():
            self._mlflow.MlflowClient().log_metric(
                run.info.run_id, name, value, timestamp=_moment(record), step=record.round
            )


def _moment(record: RoundRecord) -> int | None:
    """The time stamp of a round: the clock's in a simulation; its number in a deployed run.

    How long a deployed round took follows the size of its cohort, which is secret: such a record
    has no seconds either.
    """
    return record.round if record.seconds is None else None


def named_logger(name: str, folder: Path) -> Any:
    """The logger of that name for the run of a folder; its files lie beside the folder.

    A package registers its own as an entry point of dpfedls.loggers: a function of the folder.
    """
    known = {
        "csv": lambda folder: CsvLogger(folder.with_name(f"{folder.name}.csv")),
        "mlflow": lambda _: MlflowLogger(),
        "tensorboard": lambda folder: TensorBoardLogger(f"{folder}-tensorboard"),
    }
    folder = folder.resolve()  # the folder "." has no name to put a file beside
    if name in known:
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
