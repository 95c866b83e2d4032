"""A node: trains its people when the server asks for them, and sends the sum of their updates."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from flwr.app import Context
from torch import Tensor

from dpfedls.flower import client_app
from dpfedls.randomness import SeededStreams
from dpfedls.runs import recipes
from dpfedls.tasks.task import Task, make_task

recipe = recipes.read(str(Path(__file__).with_name("recipe.toml")))


@cache
def task() -> Task:
    """The recipe's data and model."""
    return make_task(recipe.task, recipe.plan.num_clients, SeededStreams(recipe.seed))


def people(context: Context) -> Mapping[int, tuple[Tensor, Tensor]]:
    """The people of this node: number in the population → (features, targets).

    Put your own loader here. The stand-in deals the recipe's people out to the nodes in turn.
    """
    mine, nodes = (int(context.node_config[k]) for k in ("partition-id", "num-partitions"))
    data = task().data
    return {j: data.client(j) for j in range(mine, recipe.plan.num_clients, nodes)}


app = client_app(recipe, model=lambda: task().model, people=people)
