"""What is wrong with a recipe, in plain words: the key, and the one that was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import inspect

from dpfedls.component import WORDS
from dpfedls.errors import unknown

# What other libraries and papers call our keys. A name with its table is looked up before its last
# part alone: σ is noise to most, and the strength of smoothing to the paper.
SYNONYMS = {
    "denoiser.sigma": "denoiser.strength",
    "denoiser.lambda": "denoiser.strength",
    **dict.fromkeys(("sigma_ls", "smoothing", "ls_strength"), "denoiser.strength"),
    **dict.fromkeys(
        ("lr", "client_lr", "local_lr", "step_size", "eta", "eta_l"), "local.learning_rate"
    ),
    **dict.fromkeys(("server_lr", "global_lr", "eta_g", "server_learning_rate"), "server_rate"),
    **dict.fromkeys(("wd", "l2"), "local.weight_decay"),
    **dict.fromkeys(("lr_decay", "gamma"), "local.decay"),
    **dict.fromkeys(("batch", "bs", "minibatch", "batchsize"), "local.batch_size"),
    **dict.fromkeys(("local_epochs", "num_epochs", "epoch"), "local.epochs"),
    **dict.fromkeys(("local_steps", "num_steps"), "local.steps"),
    **dict.fromkeys(("eps", "target_epsilon"), "calibrate.epsilon"),
    **dict.fromkeys(("noise", "sigma", "z", "noise_scale", "nm"), "plan.noise_multiplier"),
    **dict.fromkeys(
        ("clip", "clipping", "clipping_norm", "clipping_bound", "max_grad_norm", "l2_norm_clip"),
        "plan.clip_norm",
    ),
    **dict.fromkeys(("num_rounds", "t", "iterations", "global_rounds"), "plan.rounds"),
    **dict.fromkeys(("clients", "users", "num_users", "people", "n"), "plan.num_clients"),
    **dict.fromkeys(("q", "tau", "sampling_rate", "fraction", "frac"), "plan.sampler.rate"),
    **dict.fromkeys(("cohort_size", "clients_per_round", "m"), "plan.sampler.cohort"),
    **dict.fromkeys(("dataset", "data", "model"), "task"),
    **dict.fromkeys(("random_seed", "rng"), "seed"),
    **dict.fromkeys(("gpu", "cuda"), "device"),
    **dict.fromkeys(("standardize", "normalize", "normalise", "scale_inputs"), "standardise"),
}


class _Key(NamedTuple):
    """A key of the recipe, and the kind of table that has it where there are several."""

    name: str
    kind: str | None


def explain(message: str, values: dict[str, Any], source: str, recipe: type) -> str:
    """msgspec's message with the key in plain words and, for an unknown name, the likely one."""
    root = inspect.type_info(recipe)
    what, _, where = message.partition(" - at `$")
    key = where.rstrip("`").lstrip(".")
    path = re.findall(r"\[.*?\]|[^.\[]+", key)
    if "unknown field" in what:
        name = what.split("`")[1]
        table = "".join(f"{part}." for part in path if part[0] != "[")
        known = [table + field for field in _known(path, values, root)]
        remedy = _remedy(table + name, known, list(_keys(root)))
        return f"{source}: {unknown('key', f'{key}.{name}'.lstrip('.'), known, remedy)}"
    if what.lower().startswith(("invalid value", "invalid enum value")):
        name, known = what.split("'")[1], _known(path, values, root)
        return f"{source}: {unknown(f'value of {key}:', name, known, _listed(known))}"
    if what.startswith("Expected `"):
        kinds = [_WORDS.get(kind, kind) for kind in what.split("`")[1].split(" | ")]
        wanted = " or ".join(kind for kind in kinds if kind)
        if path and path[-1] == "[...]":  # some value of a table: msgspec does not say which
            return f"{source}: a value of {key[:-5]} = {_shown(path[:-1], values)} must be {wanted}"
        return f"{source}: {key} = {_shown(path, values)} must be {wanted}"
    if "missing required field" in what:
        name = f"{key}.{what.split('`')[1]}".lstrip(".")
        return f"{source}: {name} is missing; docs/recipe.md says what it is, and has an example"
    return f"{source}{', ' if key else ''}{key}: {what[0].lower()}{what[1:]}"


_OWN = "package.module:Name"
_WORDS = WORDS | {"object": "a table", "array": "a list", "null": ""}


def _listed(known: list[str]) -> str:
    """All values there are: a near one would often be a wrong guess, and they are few."""
    return f"known: {', '.join(sorted(known))}"


def _shown(path: list[str], values: Any) -> str:
    """The value at a place of the recipe, as TOML has it."""
    for part in path:
        values = values[int(part[1:-1]) if part[0] == "[" else part]
    return str(values).lower() if isinstance(values, bool) else repr(values)


def _remedy(name: str, here: list[str], keys: list[_Key]) -> str:
    """What to write instead, or what there is where nothing comes to mind."""
    last = _last(name)
    for key in keys:
        if key.name == name:  # right, but for another kind of table
            table = name.rpartition(".")[0]
            return f"it belongs to {table}.kind = {key.kind!r}; here: {', '.join(sorted(here))}"
    names = [key.name for key in keys]
    meant = SYNONYMS.get(name.lower()) or SYNONYMS.get(last.lower().replace("-", "_"))
    known = [key for key in names if key == meant]
    same = [key for key in names if _last(key) == last]  # the right name in the wrong table
    found = [key for key in known if key in here] or same or known
    found = found or _near(last, here) or _near(last, names)
    return f"did you mean {found[0]!r}?" if found else f"known: {', '.join(sorted(here))}"


def _near(last: str, keys: list[str]) -> list[str]:
    """Keys with a like last part; the tables before it say nothing about what was meant."""
    close = difflib.get_close_matches(last, [_last(key) for key in keys], n=1, cutoff=0.6)
    return [key for key in keys if _last(key) in close]


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _keys(kind: inspect.Type, path: str = "") -> Iterator[_Key]:
    """Every key that a recipe may have."""
    options = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    for option in options:
        if isinstance(option, inspect.StructType):
            for field in option.fields:
                name = f"{path}{field.encode_name}"
                yield _Key(name, str(option.tag) if option.tag is not None else None)
                yield from _keys(field.type, f"{name}.")


def _known(path: list[str], values: Any, kind: inspect.Type) -> list[str]:
    """What may stand at a place of the recipe: keys of a table, kinds, or words of a choice."""
    for part in [*path, ""]:
        options = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
        if part[:1] == "[":
            kind = next(t.item_type for t in options if isinstance(t, inspect.ListType))
            values = values[int(part[1:-1])]
            continue
        if isinstance(kind, inspect.UnionType):
            structs = [t for t in options if isinstance(t, inspect.StructType)]
            if part == "kind":
                return [_OWN if t.tag == "own" else str(t.tag) for t in structs]
            words = [t for t in options if isinstance(t, inspect.LiteralType)]
            if words and not isinstance(values, dict):
                others = ((inspect.BoolType, "bool"), (inspect.FloatType, "float"))
                named = [_WORDS[w] for t in options for kind, w in others if isinstance(t, kind)]
                return [*map(str, words[0].values), *named, _WORDS["object"]]
            named = values.get("kind") if isinstance(values, dict) else None
            kind = next((t for t in structs if t.tag in (named, None)), options[0])
        if isinstance(kind, inspect.StructType) and part:
            kind = {field.encode_name: field.type for field in kind.fields}[part]
            values = values.get(part) if isinstance(values, dict) else None
    if isinstance(kind, inspect.LiteralType):
        return [str(value) for value in kind.values]
    return [f.encode_name for f in kind.fields] if isinstance(kind, inspect.StructType) else []
