"""Write docs/recipe.md: every key of a recipe, from the structs that decode it.

    python tools/recipe_page.py

A key's description is the comment beside its field; a table's is the docstring of its class.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dpfedls.runs.recipe import OwnDenoiser, Recipe

PAGE = Path(__file__).parents[1] / "docs" / "recipe.md"
INTRODUCTION = """\
# Every key of a recipe

<!-- Written by tools/recipe_page.py; edit the docstrings and comments of the source instead. -->

A recipe is a TOML file that says what to train on what, under which promise.
`dpfedls run mine.toml` trains it, `dpfedls run mine.toml --set plan.rounds=10` changes a key for
one run, and the run folder keeps the complete recipe as `recipe.toml`. An unknown key is refused
with the one that was probably meant.

Two lines are enough: `task`, and `calibrate = { epsilon = 2.0 }`. What is left out of `plan`,
`local`, `denoiser`, `server_rate` and `schedule` is then chosen, key by key ([choosing a
plan](choosing-a-plan.md)), and `chosen` in the run folder's recipe says why. With a `plan.sampler`
nothing is chosen, and the defaults below hold. This recipe says everything itself:

```toml
task = "synthetic-logistic"
denoiser = { kind = "laplacian", strength = 2.0 }
calibrate = { epsilon = 2.0 }          # or plan.noise_multiplier

[plan]
sampler = { kind = "poisson", rate = 0.1 }
num_clients = 300
rounds = 20
clip_norm = 0.3                        # or { kind = "adaptive", start = 1.0 }

[local]
epochs = 2
batch_size = 5
learning_rate = 0.1
```

A table with a `kind` is one of several, and each kind has keys of its own. `denoiser` may also be
a list: they are applied one after another.
"""

# Of keys whose field has no comment beside it, since the docstring of the class says it all.
ABOUT = {
    "The recipe itself": {
        "plan": "the promise: sampling, clipping, noise, rounds, δ",
        "local": "what each client does in a round",
        "denoiser": "what is done to a release before the step; one or a list",
        "calibrate": "choose the noise by an ε instead of giving it",
        "averaging": "0 hands out the last iterate, 1 the uniform average, 0.9 an exponential one",
        "mode": "deployed draws noise from the operating system; a simulation protects nobody",
        "seed": "of everything random in a simulation",
        "device": "cpu, cuda, …",
        "engine": "who trains the clients; auto takes the fastest that can",
        "block_size": "how many clients train at once; chosen where absent",
        "evaluate_every": "rounds from one evaluation on the test samples to the next",
        "reproduces": "a table or figure of the paper, for `dpfedls recipes`",
    },
    "`plan`": {
        "sampler": "who takes part in a round",
        "num_clients": "how many people there are",
        "rounds": "how many rounds; ε is that of all of them",
        "clip_norm": "the longest that an update may be, or a table that lets it adapt",
        "noise_multiplier": "noise on the sum ÷ clip norm",
        "delta": "num_clients^−1.1 where absent",
    },
    "`plan.sampler`, kind `poisson`": {"rate": "probability that a given client takes part"},
    "`plan.sampler`, kind `fixed`": {"cohort": "how many take part"},
    "`plan.clip_norm`, kind `adaptive`": {
        "start": "the norm of the first round",
        "quantile": "the share of updates that is not clipped",
    },
    "`local`": {
        "epochs": "passes over a client's samples; this or steps",
        "steps": "batches; this or epochs",
        "most_steps": "with epochs: at most so many batches, however many samples a client has",
        "batch_size": "samples in a batch",
        "learning_rate": "of the first round",
        "decay": "what the learning rate is multiplied by from round to round",
        "weight_decay": "pulls weights towards zero",
        "projection": "return to the ball after every step, or clip the finished update",
        "precision": "of the model's arithmetic",
    },
    "`denoiser`, kind `laplacian`": {
        "strength": "σ of the paper; 0 switches smoothing off",
        "scope": "the ring: each tensor, or the whole model",
        "order": "how convolution kernels lie along the ring",
    },
    "`denoiser`, kind `momentum`": {"decay": "share of the past in the average"},
    "`calibrate`": {
        "epsilon": "what the whole run may cost",
        "accountant": "by which ε is computed",
    },
    "`nodes`": {"most_samples": "of one person that count"},
}


def page() -> str:
    """The whole page."""
    return INTRODUCTION + "".join(f"\n{part}" for part in tables(Recipe, "", "The recipe itself"))


def tables(struct: type[msgspec.Struct], path: str, title: str) -> Iterator[str]:
    """The section of one table, then those of the tables inside it."""
    said = ABOUT.get(title, {}) | comments(struct)
    fields = msgspec.structs.fields(struct)
    cells = [(f"`{path}{f.name}`", kind(f.type), default(f), said.get(f.name, "")) for f in fields]
    rows = [f"| {' | '.join(row)} |\n" for row in cells]
    head = "| key | type | default | |\n|---|---|---|---|\n"
    table = head + "".join(rows) if rows else "No keys of its own.\n"
    yield f"## {title}\n\n{documentation(struct)}\n\n{table}"
    for field in fields:
        for inner in structs(field.type):
            name = f"{path}{field.name}"
            tag = inner.__struct_config__.tag
            named = f"`{name}`, kind `{tag}`" if tag else f"`{name}`"
            if inner is OwnDenoiser:
                yield f"## `{name}`, your own\n\n{documentation(inner)}\n"
            else:
                yield from tables(inner, f"{name}.", named)


def structs(hint: Any) -> list[type[msgspec.Struct]]:
    """The structs of a type, of a union or of a list, each once."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return [hint]
    found = (struct for part in getattr(hint, "__args__", ()) for struct in structs(part))
    return list(dict.fromkeys(found))


def kind(hint: Any) -> str:
    """A type as a person reads it."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "table"
    if hint in (type(None), msgspec.UnsetType):
        return ""
    choices = getattr(hint, "__args__", ())
    if str(hint).startswith("typing.Literal"):
        return ", ".join(f'`"{choice}"`' for choice in choices)
    if str(hint).startswith("list"):
        return "list of tables"
    if str(hint).startswith("dict"):
        return "table"
    names = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    if hint in names:
        return names[hint]
    return " or ".join(dict.fromkeys(said for choice in choices if (said := kind(choice))))


def default(field: Any) -> str:
    """What holds where the key is absent."""
    if field.required:
        return "required"
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    if isinstance(value, msgspec.Struct):
        return f"kind `{value.__struct_config__.tag}`"
    if value in (None, msgspec.UNSET, ""):
        return "–"
    return f"`{msgspec.json.encode(value).decode()}`"


def comments(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The comment beside each field of a struct, as its source has it."""
    beside = re.findall(r"^    (\w+): [^#\n]*  # (.*)$", inspect.getsource(struct), re.M)
    return {name: said.replace("|", "\\|") for name, said in beside}


def documentation(struct: type[msgspec.Struct]) -> str:
    """A class's docstring as Markdown."""
    return inspect.cleandoc(struct.__doc__ or "").replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
