"""``dpfedls audit``: run a recipe with a hostile person in it, and look at all that leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dpfedls.commands.output import Json, answer
from dpfedls.errors import InputError


def audit(
    recipe: Annotated[
        str,
        typer.Argument(help="A recipe's name, a path that ends in .toml, or a run's folder."),
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a key: --set plan.rounds=10. May be repeated."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    trials: Annotated[int, typer.Option(help="Cheap rounds with made-up updates.")] = 300,
    canaries: Annotated[
        int | None, typer.Option(help="Clients that send random directions; 0 for none.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run own code that a run's folder names.")
    ] = False,
    json: Json = False,
) -> None:
    """Run a recipe with a hostile person in it and compare what leaves with what it claims.

    Of a run's folder its own recipe is audited elsewhere, and what lies in it is looked at.
    """
    import msgspec
    import torch

    from dpfedls.auditing.kept import recipe_of_run
    from dpfedls.auditing.recipe import audit as audit_recipe
    from dpfedls.runs import recipes
    from dpfedls.runs.watch import progress

    settings = list(set_ or [])
    settings += [] if seed is None else [f"seed={seed}"]
    folder = Path(recipe) if Path(recipe).is_dir() else None
    if folder is None:
        chosen = recipes.read(recipe, settings)
    elif set_:
        raise InputError(
            f"{recipe} is a run's folder, whose own recipe is audited, so --set would change what "
            f"is audited; leave it out, or audit {folder / 'recipe.toml'}"
        )
    else:
        chosen = recipe_of_run(folder, trust)
        chosen = chosen if seed is None else msgspec.structs.replace(chosen, seed=seed)
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
    with progress(4, "audit") as advance:
        found = audit_recipe(chosen, trials=trials, canaries=canaries, folder=folder, watch=advance)
    answer(found, json, text(found))
    if not found["consistent"]:
        raise typer.Exit(1)


def text(found: dict[str, Any]) -> str:
    """The result in plain words."""
    power = found["power"]
    lines = [
        f"{'consistent with the claim' if found['consistent'] else 'NOT CONSISTENT WITH THE CLAIM'}"
        f": ε = {found['epsilon_claimed']:.4g} at δ = {found['delta']:.3g} for {found['rounds']} "
        f"rounds ({found['relation'].replace('-', ' ')})",
        *(f"  problem: {problem}" for problem in found["problems"]),
        *(f"  note: {note}" for note in found["notes"]),
        "",
        f"a person who does all they can, with confidence {100 * found['confidence']:g} %:",
        f"  one round they take part in: μ >= {found['mu_lower']:.4g}, claimed "
        f"{found['mu_claimed']:.4g}",
        f"  all rounds: ε >= {found['epsilon_lower']:.4g}, claimed {found['epsilon_claimed']:.4g}",
        *(f"{where}: {_count(number)}" for where, number in found["checks"].items()),
        f"power: noise wrong by {100 * power['noise_scale_error_found']:.2g} % is found in "
        f"{100 * power['with_probability']:g} audits of 100, deployed noise wrong by "
        f"{100 * power['deployed_scale_error_found']:.2g} % too",
        *(
            f"one training run, {canary['canaries']} canaries in {canary['dim']} dimensions, seen "
            f"through {canary['seen']}:\n"
            f"  ε ≈ {canary['epsilon']:.4g}, and >= {canary['epsilon_lower']:.4g} with confidence "
            f"{100 * canary['confidence']:g} %"
            for canary in found["canary"]
        ),
    ]
    return "\n".join([*lines, "", found["note"]])


def _count(problems: int) -> str:
    return f"{problems} problems" if problems else "no problem"
