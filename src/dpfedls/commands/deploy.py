"""Commands that deploy a recipe on Flower."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfedls.commands.output import Json, answer
from dpfedls.commands.training import finish, new_folder
from dpfedls.errors import InputError

if TYPE_CHECKING:
    from dpfedls.runs.recipe import Recipe

app = typer.Typer(
    help="Run a recipe on real machines with Flower: SuperLink and SuperNodes.",
    no_args_is_help=True,
)

Source = Annotated[
    str, typer.Argument(help="An app's folder, a recipe's name, or a path that ends in .toml.")
]
Reveal = Annotated[
    bool,
    typer.Option(
        "--reveal-cohorts",
        help="Allow fixed-size cohorts, which nodes can work out; their ε is stated.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a key: --set plan.rounds=10. May be repeated."),
]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write; must be new or empty.")],
    recipe: Annotated[str, typer.Option(help="The recipe that the app runs.")] = "demo",
    set_: Settings = None,
    reveal_cohorts: Reveal = False,
    json: Json = False,
) -> None:
    """Write a complete Flower app for a recipe: change its data loader and it is yours."""
    from dpfedls.flower.app import FILES, deployed, write_app
    from dpfedls.flower.promise import on_nodes
    from dpfedls.runs import recipes

    settings = list(set_ or [])
    asked = on_nodes(
        deployed(recipes.read(recipe, settings), settings), reveal_cohorts=reveal_cohorts
    )
    chosen = _with_rates(asked)
    if chosen != asked:
        print(
            "dpfedls: server_rate and [local] were chosen for the model of "
            f"{recipe!r}; with another model give them yourself in recipe.toml, or take them from "
            "the recipe.toml of a run that dpfedls.train made with that model",
            file=sys.stderr,
        )
    config = {"run-folder": "runs/federation", "wait-for-nodes": 4, "round-timeout": 600.0}
    config["roster"] = ""
    write_app(folder, chosen, config)
    values = {"app": str(folder), "files": [str(folder / name) for name in FILES]}
    answer(values, json, "\n".join([*values["files"], f"next: read {folder / 'README.md'}"]))


@app.command()
def local(
    source: Source = "demo",
    nodes: Annotated[int, typer.Option(help="How many SuperNodes to start.")] = 4,
    set_: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run folder; give an interrupted run's folder to resume it."),
    ] = None,
    reveal_cohorts: Reveal = False,
    json: Json = False,
) -> None:
    """Run an app or a recipe on a SuperLink and SuperNodes here, over TLS, with node keys."""
    from dpfedls.flower.app import deployed, find_app, read_app_recipe
    from dpfedls.flower.local import FederationFailed, deploy_app, deploy_local
    from dpfedls.flower.promise import on_nodes
    from dpfedls.runs import recipes
    from dpfedls.runs.folder import is_free, read_recipe
    from dpfedls.runs.watch import describe, round_progress

    settings = list(set_ or [])
    own = find_app(source)
    if own is None:
        chosen = deployed(recipes.read(source, settings), settings)
        chosen = _with_rates(on_nodes(chosen, reveal_cohorts=reveal_cohorts))
    elif settings or reveal_cohorts:
        raise InputError(
            f"{own} is an app that runs its own recipe.toml, so --set and --reveal-cohorts would "
            "change nothing in it; edit its recipe.toml instead"
        )
    else:
        chosen = read_app_recipe(own).resolved()
    name = f"{Path(source).resolve().stem}-{recipes.fingerprint(chosen)}-deployed"
    folder = out or new_folder(None, name)
    if not is_free(folder):
        read_recipe(folder)  # said now, not when four nodes have started
    try:
        with round_progress(chosen) as advance:
            show = lambda record: advance(record.round, describe(record))  # noqa: E731
            if own is None:
                result = deploy_local(chosen, folder, nodes, show)
            else:
                result = deploy_app(own, folder, nodes, show)
    except (FederationFailed, KeyboardInterrupt) as stopped:
        print(
            f"dpfedls: {str(stopped) or 'stopped'}\nthe last released round is kept; go on with "
            f"the same command and --out {folder}",
            file=sys.stderr,
        )
        raise typer.Exit(1) from stopped
    finish(result, json)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def node(context: typer.Context) -> None:
    """Be a SuperNode that keeps app and data loaded; its options are flower-supernode's."""
    from dpfedls.flower import require_flower

    require_flower()
    from dpfedls.flower.node import run_node

    raise typer.Exit(run_node(context.args))


def _with_rates(recipe: Recipe) -> Recipe:
    """The recipe with the rates and trainings that it leaves to us, which need its model."""
    from dpfedls.randomness import SeededStreams
    from dpfedls.runs.fitting import is_open, ready
    from dpfedls.tasks.task import make_task

    if not is_open(recipe):
        return recipe

    return ready(
        recipe, make_task(recipe.task, recipe.plan.num_clients, SeededStreams(recipe.seed))
    )
