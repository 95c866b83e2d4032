"""``dpfedls.audit``: the audit of what ``dpfedls.train`` would make of the same arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from dpfedls.auditing.recipe import TRIALS
from dpfedls.auditing.recipe import audit as audit_recipe
from dpfedls.errors import InputError
from dpfedls.runs.folder import is_free, path_of, read_recipe
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.recipes import differing
from dpfedls.runs.record import Watch
from dpfedls.runs.train import recipe_for


def audit(
    model: nn.Module,
    clients: Any,
    *,
    trials: int = TRIALS,
    canaries: int | None = 0,
    folder: str | os.PathLike[str] | None = None,
    watch: Sequence[Watch] = (),
    progress: bool = False,
    **training: Any,
) -> dict[str, Any]:
    """Audit the run that ``dpfedls.train`` makes of these very arguments; what the command answers.

    Runs are made in temporary folders and nobody who watches is told. Where ``folder`` holds a run
    already, finished or not, it is looked at too and not touched.
    """
    place = None if folder is None else path_of(folder, "folder")
    kept = None if place is None or is_free(place) else place
    recipe, task, denoiser = recipe_for(model=model, clients=clients, folder=kept, **training)
    if kept is not None:
        _require_same(read_recipe(kept), recipe, kept)
    return audit_recipe(recipe, task, denoiser, trials=trials, canaries=canaries, folder=kept)


def _require_same(found: Recipe, given: Recipe, folder: Path) -> None:
    if differing(found, given):
        raise InputError(
            f"{folder} holds the run of another recipe than these arguments make, so an audit of "
            "them would say nothing of it; give the arguments that train was given"
        )
