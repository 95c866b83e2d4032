"""The run folder of a deployment."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from dpfedls.experiments import folder as folders
from dpfedls.experiments.recipe import Recipe
from dpfedls.parameters import Layout
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.server import Server


class RunFolder(folders.RunFolder):
    """A run folder with the server that a recipe asks for."""

    def __init__(self, folder: Path, recipe: Recipe, model: nn.Module) -> None:
        recipe = recipe.resolved()
        server = Server(
            recipe.plan,
            recipe.denoiser,
            Layout.of(model),
            MemoryLedger(recipe.plan, recipe.budget),
            recipe.server_rate,
            recipe.averaging,
        )
        super().__init__(folder, recipe, server, model)
