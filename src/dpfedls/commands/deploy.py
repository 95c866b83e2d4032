"""Commands that deploy a recipe on Flower."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dpfedls.commands.output import Json, answer
from dpfedls.commands.training import finish, new_folder

app = typer.Typer(
    help="Run a recipe on real machines with Flower: SuperLink and SuperNodes.",
    no_args_is_help=True,
)

Recipe = Annotated[str, typer.Argument(help="A recipe's name, or a path that ends in .toml.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a key: --set plan.rounds=10. May be repeated."),
]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write; must be new or empty.")],
    recipe: Annotated[str, typer.Option(help="The recipe that the app runs.")] = "demo",
    set_: Settings = None,
    json: Json = False,
) -> None:
    """Write a complete Flower app for a recipe: change its data loader and it is yours."""
    from dpfedls.flower.app import FILES, deployed, write_app
    from dpfedls.runs import recipe as recipes

    settings = list(set_ or [])
    chosen = deployed(recipes.read(recipe, settings), settings)
    config = {"run-folder": "runs/federation", "wait-for-nodes": 4, "round-timeout": 600.0}
    write_app(folder, chosen, config)
    values = {"app": str(folder), "files": [str(folder / name) for name in FILES]}
    answer(values, json, "\n".join([*values["files"], f"next: read {folder / 'README.md'}"]))


@app.command()
def local(
    recipe: Recipe = "demo",
    nodes: Annotated[int, typer.Option(help="How many SuperNodes to start.")] = 4,
    set_: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run folder; that of an interrupted run is gone on with."),
    ] = None,
    json: Json = False,
) -> None:
    """Run a recipe on a SuperLink and SuperNodes on this machine, over TLS, with node keys."""
    from dpfedls.flower.app import deployed
    from dpfedls.flower.local import FederationFailed, deploy_local
    from dpfedls.runs import recipe as recipes
    from dpfedls.runs.watch import Progress

    settings = list(set_ or [])
    chosen = deployed(recipes.read(recipe, settings), settings)
    name = f"{Path(recipe).stem}-{recipes.fingerprint(chosen)}-deployed"
    folder = out or new_folder(None, name)
    try:
        shown = Progress(chosen.plan.rounds)
        try:
            result = deploy_local(chosen, folder, nodes, shown)
        finally:
            shown.close()
    except (FederationFailed, KeyboardInterrupt) as stopped:
        print(
            f"dpfedls: {str(stopped) or 'stopped'}\nthe last released round is kept; go on with "
            f"the same command and --out {folder}",
            file=sys.stderr,
        )
        raise typer.Exit(1) from stopped
    finish(result, json)
