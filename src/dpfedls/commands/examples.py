"""An example for each command, shown below its help."""

from __future__ import annotations

import typer

EXAMPLES = {
    "demo": "dpfedls demo --seeds 2",
    "recipes": "dpfedls recipes",
    "run": "dpfedls run synthetic --set plan.rounds=10 --seed 1 --out runs/mine",
    "resume": "dpfedls resume runs/mine",
    "export": "dpfedls export runs/a --out model",
    "report": "dpfedls report runs/a runs/b --out page.html",
    "planner": "dpfedls planner --out planner.html",
    "attack": "dpfedls attack runs/mine",
    "doctor": "dpfedls doctor",
    "audit": "dpfedls audit synthetic",
    "theory": "dpfedls theory --case convex",
    "reproduce": "dpfedls reproduce table1 --out results",
    "sweep": "dpfedls sweep synthetic --grid denoiser.strength=0,1,3 --seeds 3",
    "tune": "dpfedls tune synthetic --grid denoiser.strength=0,1,3",
    "privacy epsilon": "dpfedls privacy epsilon --sampling poisson --clients 5000 --rate 0.02 "
    "--rounds 200 --noise-multiplier 1.2",
    "privacy noise": "dpfedls privacy noise --epsilon 2 --sampling poisson --clients 5000 "
    "--rate 0.02 --rounds 200",
    "privacy rounds": "dpfedls privacy rounds --epsilon 2 --noise-multiplier 1.2 "
    "--sampling poisson --clients 5000 --rate 0.02",
    "privacy plan": "dpfedls privacy plan --clients 5000 --epsilon 2",
    "privacy statement": "dpfedls privacy statement runs/mine",
    "privacy verify": "dpfedls privacy verify runs/mine",
    "privacy total": "dpfedls privacy total runs/a runs/b",
    "deploy init": "dpfedls deploy init federation --recipe demo",
    "deploy local": "dpfedls deploy local demo --nodes 4",
    "deploy node": "dpfedls deploy node --superlink server.example.org:8000 "
    "--root-certificates ca.crt --auth-supernode-private-key node.key",
}


def add_examples(app: typer.Typer, path: str = "") -> None:
    """Put its example below the help of every command of the app and of the apps inside it."""
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "").replace("_", "-")
        example = EXAMPLES.get(f"{path}{name}")
        if example:
            command.epilog = "\n\n".join(filter(None, [f"Example: {example}", command.epilog]))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_examples(group.typer_instance, f"{path}{group.name} ")
