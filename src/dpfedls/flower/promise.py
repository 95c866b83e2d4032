"""A recipe as nodes run it: what that gives away is switched on explicitly, or refused."""

from __future__ import annotations

import msgspec

from dpfedls.privacy.observers import Nodes
from dpfedls.runs.recipe import Recipe

NOISE_ALONE = "what is paid for and released is noise alone"  # in the server's log


def on_nodes(
    recipe: Recipe, *, reveal_cohorts: bool = False, unprotected_client_metrics: bool = False
) -> Recipe:
    """The recipe with its ``nodes`` filled in; fixed-size cohorts unasked for are refused.

    It stands in the recipe, not in an argument, so that a run cannot be resumed under another
    promise, and so that the statement and its verification read it from one place.
    """
    said = recipe.nodes or Nodes()
    nodes = msgspec.structs.replace(
        said,
        reveal_cohorts=said.reveal_cohorts or reveal_cohorts,
        unprotected_client_metrics=said.unprotected_client_metrics or unprotected_client_metrics,
    )
    recipe = msgspec.structs.replace(recipe.resolved(), nodes=nodes)
    nodes.check(recipe.plan.round_event)
    return recipe
