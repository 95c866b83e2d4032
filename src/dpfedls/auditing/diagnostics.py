"""SENSITIVE: how a run's models fare on the people's own samples, round by round.

What is written to diagnostics.jsonl is made from private data without noise. It is for simulation,
where the data is public, and stays apart from rounds.jsonl, which anybody may see.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from dpfedls.auditing.membership import require_scikit_learn, sides, threshold_attack
from dpfedls.metrics import evaluate
from dpfedls.privacy.durable import PRIVATE, append, write_whole
from dpfedls.randomness import SeededStreams
from dpfedls.runs.folder import read_lines
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.record import RoundRecord, Watch
from dpfedls.runs.run import Run

FILE = "diagnostics.jsonl"


class Diagnosis(msgspec.Struct, frozen=True):
    """A line of diagnostics.jsonl; null where a task has no validation samples."""

    round: int
    training_loss: float | None
    training_accuracy: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    attack_auc: float


def watchers(recipe: Recipe, folder: Path) -> list[Watch]:
    """Diagnostics among those who watch a run, where its recipe asks for them."""
    return [Diagnostics(folder)] if recipe.diagnose else []


class Diagnostics:
    """Evaluates every model of a run on the same samples: members, as many others, validation."""

    def __init__(self, folder: Path) -> None:
        require_scikit_learn()
        self.path = folder / FILE

    def start(self, run: Run) -> None:
        """Draw the samples; keep the lines up to the run's last round, and write the rest again."""
        self.run, self.validation = run, run.task.validation
        self.members, self.others = sides(run.task, SeededStreams(run.recipe.seed))
        kept = [line for line in read_lines(self.path, Diagnosis) if line.round <= run.state.round]
        write_whole(self.path, b"".join(map(_encoded, kept)), PRIVATE)

    def __call__(self, record: RoundRecord) -> None:
        """Evaluate the model of a round, where the recipe evaluates it, and write the line."""
        if not record.metrics:
            return
        task, model = self.run.task, self.run.model
        inside = evaluate(model, self.members, task.loss, task.metrics)
        held: dict[str, float] = {}
        if self.validation is not None:
            held = evaluate(model, self.validation, task.loss, task.metrics)
        line = Diagnosis(
            record.round,
            inside["loss"],
            inside.get("accuracy"),
            held.get("loss"),
            held.get("accuracy"),
            threshold_attack(model, task.loss, self.members, self.others)["auc"],
        )
        append(self.path, _encoded(line), PRIVATE)


def read_diagnostics(folder: Path) -> list[Diagnosis]:
    """The lines of a run's diagnostics.jsonl; none if it was not asked for."""
    return read_lines(folder / FILE, Diagnosis)


def _encoded(line: Diagnosis) -> bytes:
    return msgspec.json.encode(line) + b"\n"
