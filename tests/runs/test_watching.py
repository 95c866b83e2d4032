"""Who watches a run: loggers, files and the progress bar."""

from __future__ import annotations

import csv
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from torch import nn
from trainings import stop_after, train

import dpfedls
from dpfedls import InputError
from dpfedls.runs.loggers import named_logger
from dpfedls.runs.verify import verify
from dpfedls.runs.watch import Pace


def test_loggers_and_progress_see_every_round(tmp_path, capsys):
    seen = []
    logger = dpfedls.CsvLogger(tmp_path / "log.csv")
    train(watch=[logger, seen.append], progress=True)
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert (
        [int(row["round"]) for row in rows] == [record.round for record in seen] == [*range(1, 7)]
    )
    assert float(rows[-1]["accuracy"]) == pytest.approx(seen[-1].accuracy)
    assert "round 6/6" in capsys.readouterr().err


def test_a_csv_file_has_all_metrics_and_the_rounds_before_a_crash(tmp_path):
    def logged():
        return list(csv.DictReader((tmp_path / "log.csv").open()))

    given = {"folder": tmp_path / "r", "evaluate_every": 3}
    with pytest.raises(KeyboardInterrupt):
        train(**given, watch=[dpfedls.CsvLogger(tmp_path / "log.csv"), stop_after(4)])
    assert [row["round"] for row in logged()] == ["1", "2", "3", "4"]
    result = train(**given, watch=[dpfedls.CsvLogger(tmp_path / "log.csv")])
    assert [row["round"] for row in logged()] == ["1", "2", "3", "4", "5", "6"]
    assert [bool(row["accuracy"]) for row in logged()] == [False, False, True] * 2
    assert float(logged()[-1]["loss"]) == pytest.approx(result.loss)


def test_loggers_write_beside_the_folder_wherever_that_is(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    train(watch=[named_logger("csv", Path())], folder=".")
    assert len((tmp_path / "here.csv").read_text().splitlines()) == 7
    assert verify(Path())["valid"]
    dpfedls.CsvLogger("deep/er/x.csv")
    assert Path("deep/er").is_dir()


def test_deployed_loggers_are_told_no_time(tmp_path, monkeypatch):
    """Stand-ins for both packages, which are not installed here; the clock is theirs if asked."""
    stamps = {}

    class Writer:
        def __init__(self, folder): ...
        def close(self): ...
        def add_scalar(self, name, value, step, walltime):
            stamps["tensorboard", step] = walltime

        def log_metric(self, run, name, value, timestamp, step):
            stamps["mlflow", step] = timestamp

    board, flow = ModuleType("board"), ModuleType("flow")
    vars(board)["SummaryWriter"] = Writer
    vars(flow).update(MlflowClient=lambda: Writer(""), active_run=lambda: None)
    vars(flow)["start_run"] = lambda: SimpleNamespace(info=SimpleNamespace(run_id="x"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setitem(sys.modules, "mlflow", flow)
    for mode, stamp in (("simulation", lambda t: None), ("deployed", lambda t: t)):
        watch = [dpfedls.TensorBoardLogger(tmp_path / "b"), dpfedls.MlflowLogger()]
        train(mode=mode, folder=tmp_path / mode, watch=watch)
        for name in ("tensorboard", "mlflow"):
            assert [stamps[name, t] for t in range(1, 7)] == [stamp(t) for t in range(1, 7)]


@pytest.mark.parametrize("logger", [dpfedls.TensorBoardLogger, dpfedls.MlflowLogger])
def test_a_logger_whose_package_is_missing_says_what_to_install(logger, tmp_path, monkeypatch):
    for name in ("tensorboard", "torch.utils.tensorboard", "mlflow"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(InputError, match=r"pip install 'dpfedls\["):
        logger(tmp_path) if logger is dpfedls.TensorBoardLogger else logger()


def test_a_watcher_that_cannot_close_leaves_a_finished_run(tmp_path, caplog):
    class Full:
        def __call__(self, record): ...

        def close(self):
            raise OSError("No space left on device")

    result = train(folder=tmp_path / "r", watch=[Full()])
    assert "Full failed to close (OSError: No space left" in caplog.text
    assert verify(tmp_path / "r")["valid"]
    again = train(folder=tmp_path / "r", watch=[Full()])  # nobody holds its ledger
    assert again.epsilon == result.epsilon


def test_wrong_input_leaves_no_live_bar(monkeypatch):
    """A notebook keeps the last traceback, and with it whatever was shown when it was made."""
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    before = set(threading.enumerate())
    with pytest.raises(InputError) as kept:
        train(model=nn.Linear(7, 3), progress=True)
    assert set(threading.enumerate()) <= before, kept


@pytest.mark.parametrize("mode", ["simulation", "deployed"])
def test_progress_of_a_deployed_run_tells_no_time(tmp_path, capsys, mode):
    train(folder=tmp_path / "r", mode=mode, progress=True)
    said = capsys.readouterr().err
    assert "round 6/6" in said
    assert ("s left" in said) == (mode == "simulation")


def test_time_left_is_not_told_from_the_first_step(monkeypatch):
    now = iter([0.0, 100.0, 101.0, 103.0])
    monkeypatch.setattr("dpfedls.runs.watch.time.perf_counter", lambda: next(now))
    next(now)  # the start
    pace = Pace(10)
    assert pace.left(1) == ""  # it took 100 s, to compile
    assert pace.left(2) == "8 s left"
    assert pace.left(4) == "6 s left"
