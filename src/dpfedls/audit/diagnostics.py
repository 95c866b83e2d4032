"""SENSITIVE: how a run's models fare on the people's own samples, round by round.

What is written to diagnostics.jsonl is made from private data without noise. It is for simulation,
where the data is nobody's secret, and stays apart from rounds.jsonl, which anybody may see.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from torch import nn

from dpfedls.audit.membership import require_scikit_learn, sides, threshold_attack
from dpfedls.local_sgd import cross_entropy
from dpfedls.metrics import evaluate
from dpfedls.randomness import SeededStreams
from dpfedls.runs.checkpoint import write_whole
from dpfedls.runs.folder import read_lines
from dpfedls.tasks.task import Task

FILE = "diagnostics.jsonl"


class Diagnosis(msgspec.Struct, frozen=True):
    """A line of diagnostics.jsonl; null where a task has no validation samples."""

    round: int
    training_loss: float | None
    training_accuracy: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    attack_auc: float


class Diagnostics:
    """Judges every model of a run on the same samples: members, as many others, validation."""

    def __init__(self, folder: Path, task: Task, streams: SeededStreams) -> None:
        require_scikit_learn()
        self.path = folder / FILE
        self.members, self.others = sides(task, streams)
        self.validation = task.validation

    def trim(self, last: int) -> None:
        """Keep the lines up to round ``last``: what a crash left behind it will be judged again."""
        kept = [line for line in read_lines(self.path, Diagnosis) if line.round <= last]
        write_whole(self.path, b"".join(map(_encoded, kept)))

    def record(self, round_: int, model: nn.Module) -> None:
        """Judge the model of a round and write the line."""
        accuracy, loss = evaluate(model, self.members, cross_entropy)
        held: tuple[float | None, float | None] = (None, None)
        if self.validation is not None:
            held = evaluate(model, self.validation, cross_entropy)
        auc = threshold_attack(model, self.members, self.others)["auc"]
        with self.path.open("ab") as lines:
            lines.write(_encoded(Diagnosis(round_, loss, accuracy, held[1], held[0], auc)))


def read_diagnostics(folder: Path) -> list[Diagnosis]:
    """The lines of a run's diagnostics.jsonl; none if it was not asked for."""
    return read_lines(folder / FILE, Diagnosis)


def _encoded(line: Diagnosis) -> bytes:
    return msgspec.json.encode(line) + b"\n"
