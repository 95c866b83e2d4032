"""``dpfedls audit``: attack the code with a recipe's own plan and task."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dpfedls.commands.output import Json, answer


def audit(
    recipe: Annotated[str, typer.Argument(help="A recipe's name, or a path that ends in .toml.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a key: --set plan.rounds=10. May be repeated."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    trials: Annotated[
        int, typer.Option(help="Rounds with the person, and as many without.")
    ] = 2000,
    canaries: Annotated[
        int | None, typer.Option(help="Clients that send random directions; 0 for none.")
    ] = None,
    json: Json = False,
) -> None:
    """Attack a recipe's rounds and one of its runs; compare with what its plan claims."""
    import torch

    from dpfedls.audit.recipe import audit_recipe
    from dpfedls.runs import recipe as recipes
    from dpfedls.runs.watch import progress

    settings = list(set_ or [])
    settings += [] if seed is None else [f"seed={seed}"]
    chosen = recipes.read(recipe, settings)
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
    with progress(trials + (chosen.plan.rounds if canaries != 0 else 0), "audit") as advance:
        found = audit_recipe(chosen, trials, canaries, advance)
    answer(found, json, text(found))
    if not found["consistent"]:
        raise typer.Exit(1)


def text(found: dict[str, Any]) -> str:
    """The result in plain words."""
    one, sure = found["round"], f"{100 * found['confidence']:g} %"
    lines = [
        f"{'consistent with the claim' if found['consistent'] else 'NOT CONSISTENT WITH THE CLAIM'}"
        f": ε = {found['epsilon_claimed']:.4g} at δ = {found['delta']:.3g} for {found['rounds']} "
        f"rounds ({found['relation'].replace('-', ' ')})",
        *(f"  problem: {problem}" for problem in found["problems"]),
        "",
        f"one round, a worst-case person in it ({one['trials']} trials on each side, confidence "
        f"{sure}):",
        f"  μ >= {found['mu_lower']:.4g}, claimed {found['mu_claimed']:.4g} (threshold test "
        f"{one['mu_by_threshold']:.4g}, Gaussian fit {one['mu_by_gaussian_fit']:.4g})",
        f"  over all rounds, sampled as the plan says: ε >= {found['epsilon_lower']:.4g}, claimed "
        f"{found['epsilon_claimed']:.4g}",
        f"same noise, one person changed: {_count(found['replay']['problems'])}",
        f"{found['cohorts']['rounds']} cohorts against the plan's sampling: "
        f"{_count(found['cohorts']['problems'])}",
        *(
            f"one training run, {canary['canaries']} canaries in {canary['dim']} dimensions, seen "
            f"through {canary['seen']}:\n"
            f"  ε ≈ {canary['epsilon']:.4g}, and >= {canary['epsilon_lower']:.4g} with confidence "
            f"{sure}"
            for canary in found["canary"]
        ),
    ]
    return "\n".join([*lines, "", found["note"]])


def _count(problems: list[str]) -> str:
    return f"{len(problems)} problems" if problems else "no problem"
