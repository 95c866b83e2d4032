"""Everything that leaves a run, made again from public values alone and compared.

From the recipe, the first model, the releases and the test set follow all models, the log, the
statement and the report. What differs from that was made from something else.
"""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.numpy import load as load_tensors

from dpfedls.auditing import stall
from dpfedls.auditing.doors import door_problems
from dpfedls.auditing.kept import kept_problems, log_lines
from dpfedls.auditing.payments import expected_payments
from dpfedls.auditing.worlds import Watched, World
from dpfedls.denoising import denoise, first_memory
from dpfedls.metrics import evaluate
from dpfedls.parameters import Layout
from dpfedls.people.rescale import Slopes
from dpfedls.people.survey import Question
from dpfedls.privacy.account import read_ledger
from dpfedls.privacy.clipping import AdaptiveClipping
from dpfedls.privacy.curve import epsilon_by_round
from dpfedls.runs import recipes
from dpfedls.runs.checkpoint import FILE, Checkpoint
from dpfedls.runs.fitting import rescaling_of, survey_of, units_of
from dpfedls.runs.folder import EXCEEDED, read_rounds
from dpfedls.runs.model_file import trained_vector
from dpfedls.runs.recipe import Recipe
from dpfedls.server import ServerState
from dpfedls.stepping import NoiseRate


def replayed(world: Watched) -> list[ServerState]:
    """The states after each round, from the recipe, the first model and the releases."""
    recipe, layout = world.recipe, Layout.of(world.task.model)
    units, survey = units_of(recipe, world.task), survey_of(recipe, world.task)
    rescaling = rescaling_of(recipe, world.task)
    asked_of = {} if survey is None else survey.start()
    params = units.outward(layout.read(world.task.model))
    norm = recipe.plan.clipping.start
    denoiser = copy.deepcopy(world.denoiser)
    memory, votes = first_memory(denoiser, layout), stall.known(recipe, [params], [])
    states = [ServerState(0, params, params, norm, memory, votes, asked_of)]
    average, weights, shares, models = params, 1.0, [], [params]
    exceeded = 0.0
    for seen in world.record:
        release = seen.releases[0]
        if seen.number in world.record.lost:  # what a denoiser kept in itself the crash took too
            denoiser = copy.deepcopy(world.denoiser)
        if rescaling and _rescales(recipe, seen.number):
            average = params = rescaling.rescaled(average, release)
        elif survey is not None and survey.question(asked_of) is not None:
            asked_of = survey.following(asked_of, release)
            units = survey.found(asked_of)
            average = params = units.outward(params)  # the model waits, and is then one of these
            models = [params]
        else:
            # Not by the server's own functions: the audit has to know what was promised.
            t = seen.number - states[-1].asked
            asked = stall.earlier(recipe, t, votes) is not None
            inside = None if asked else release.inside
            step = _step(recipe, states[-1])
            direction, remembered = denoise(denoiser, replace(release, step=step), memory)
            rounds = _trainings(recipe, states[-1])
            if not _waits(recipe, norm, inside, (t + 1) / rounds):
                memory, params = remembered, params + step * units.outward(direction)
            # Σ r^−s w^s ÷ Σ r^−s: the newest has weight 1 ÷ (1 + r + r² + …).
            weights = recipe.averaging * weights + 1
            average = average.lerp(params, 1 / weights)
            own = units.inward(params)
            exceeded = _exceeded(recipe, exceeded, norm, inside)
            norm = _next_norm(recipe, norm, inside, t, own, exceeded, t / rounds)
            shares, models = [*shares, release.inside], [*models, params]
        before = stall.pace(recipe, votes)
        votes = stall.known(recipe, models, shares)
        shorter = stall.pace(recipe, votes) / before  # updates become as much shorter
        norm, exceeded = shorter * norm, shorter * exceeded
        kept = (memory, votes, asked_of, exceeded)
        states.append(ServerState(seen.number + 1, params, average, norm, *kept))
    return states


def _rescales(recipe: Recipe, t: int) -> bool:
    """Whether round t is one of the last, which ask for the scale of the scores."""
    return t >= recipe.plan.rounds - recipe.last_rounds


def _trainings(recipe: Recipe, state: ServerState) -> int:
    """How many rounds train, as far as this state knows."""
    return recipe.plan.rounds - state.asked - recipe.last_rounds


def _step(recipe: Recipe, state: ServerState) -> float:
    """The server rate of the round that follows this state."""
    plan, rate = recipe.plan, recipe.server_rate
    rounds, t = _trainings(recipe, state), state.round - state.asked  # of trainings
    norm, longer = state.clip_norm, 1 / stall.pace(recipe, state.votes)
    power = {"constant": 0.0, "root": 0.5, "linear": 1.0}[recipe.schedule]
    falling = [(1 - s / rounds) ** power for s in range(rounds)]
    if isinstance(rate, NoiseRate):
        deviation = plan.noise * plan.clipping.contribution(norm) / plan.expected_cohort
        gathered = deviation * sum(share**2 for share in falling) ** 0.5
        most = longer * rate.at_most
        return falling[t] * (min(most, rate.noise / gathered) if gathered else most)
    assert not isinstance(rate, str)  # it was chosen before the run
    return longer * rate * falling[t]


def leaving_problems(world: World) -> list[str]:
    """What left the run and does not follow from public values."""
    if any(len(seen.releases) != 1 for seen in world.record):
        return ["rounds and releases do not match"]
    states = replayed(world)
    return [
        *kept_problems(world.folder),
        *following_problems(world, states),
        *_models(world, states),
        *_log(world, states),
        *_documents(world),
        *door_problems(world.heard, world.folder),
    ]


def neighbour_problems(one: World, other: World) -> list[str]:
    """What differs between two worlds and should not; releases and what follows from them may."""
    problems = []
    if one.said != other.said:
        problems.append("what is logged or printed tells who was there")
    pairs = zip(one.record, other.record, strict=False)
    if any(not np.array_equal(here.cohort, there.cohort) for here, there in pairs):
        problems.append("who is drawn depends on one person")
    if one.result.engine != other.result.engine:
        problems.append("the engine chosen tells who was there")
    if (one.folder / "recipe.toml").read_bytes() != (other.folder / "recipe.toml").read_bytes():
        problems.append("recipe.toml tells who was there")
    if _notes(one.folder) | {"started": ""} != _notes(other.folder) | {"started": ""}:
        problems.append("notes.json tells who was there")  # but for the day, if midnight passed
    stated, stated_too = (_without_digests(world.folder) for world in (one, other))
    if stated != stated_too:
        problems.append("privacy.json tells who was there")
    paid, paid_too = (_payments(world.folder) for world in (one, other))
    if paid != paid_too:
        problems.append("the ledger tells who was there")
    return problems


def following_problems(world: Watched, states: list[ServerState]) -> list[str]:
    """What clients are asked, and what the server keeps, follows from the releases before."""
    ahead, recipe = getattr(world.denoiser, "ahead", None), world.recipe
    units, survey = units_of(recipe, world.task), survey_of(recipe, world.task)
    rescaling = rescaling_of(recipe, world.task)
    for seen, state, after in zip(world.record, states, states[1:], strict=False):
        last = rescaling if _rescales(recipe, seen.number) else None
        question = None if survey is None else survey.question(state.survey)
        question = last.question if last else question
        units = units if survey is None else survey.found(state.survey)
        if not _same_question(seen.bounds[0].question, question):
            return ["what people are asked does not follow from the releases before"]
        start = units.inward(state.average if last else state.params)
        start = start if ahead is None or last else ahead(start, state.memory)
        if seen.start is None or not torch.equal(seen.start, start):
            return ["clients did not start from the public model"]
        bound = seen.bounds[0]
        pace = 1.0 if question else stall.pace(recipe, state.votes)
        if not math.isclose(bound.norm, state.clip_norm, rel_tol=1e-9):
            return ["the clip norm of a round does not follow from the releases before it"]
        t = seen.number - state.asked
        earlier = None if question else stall.earlier(recipe, t, state.votes)
        earlier = earlier if earlier is None else units.inward(earlier)
        if not _same(bound.earlier, earlier):
            return ["who votes, or on which two models, does not follow from the releases before"]
        if not np.allclose([bound.pace, *seen.paces], pace, rtol=1e-9):
            return ["the pace of clients does not follow from the releases before it"]
        for what in [] if seen.after is None else _differing(seen.after, after):
            return [f"{what} after a round does not follow from the releases"]
    return []


def _models(world: World, states: list[ServerState]) -> list[str]:
    problems, last = [], states[-1]
    if not (world.folder / FILE).is_file():
        return ["there is no checkpoint"]
    kept = Checkpoint.load(world.folder)
    memory = {name: torch.from_numpy(values.copy()) for name, values in kept.memory.items()}
    params, average = (torch.from_numpy(v.copy()) for v in (kept.params, kept.average))
    exceeded = float(memory.pop(EXCEEDED, 0.0))
    found = ServerState(kept.round, params, average, kept.clip_norm, memory, exceeded=exceeded)
    if _differing(found, last):
        problems.append("the checkpoint does not follow from the releases")
    path = world.folder / "model.safetensors"
    own = Layout.of(world.result.model).read(world.result.model)
    if not path.is_file() or trained_vector(path).tobytes() != kept.average.tobytes():
        problems.append("the model that is handed out is not that of the checkpoint")
    if not _near(own, last.average):
        problems.append("the model that is handed out does not follow from the releases")
    if (
        path.is_file()
        and load_tensors(path.read_bytes()).keys()
        != dict(world.task.model.named_parameters()).keys()
    ):
        problems.append("model.safetensors holds tensors that are no parameters")
    return problems + _untrained(world)


def _untrained(world: World) -> list[str]:
    """Buffers and frozen parameters are as they were before training."""
    before, after = world.task.model.state_dict(), world.result.model.state_dict()
    trained = set(Layout.of(world.task.model).names)
    if before.keys() != after.keys() or vars(world.task.model).keys() != (
        vars(world.result.model).keys()
    ):
        return ["the model that is handed out holds more than the one that was given"]
    changed = [
        name
        for name in before.keys() - trained
        if not torch.equal(before[name].cpu(), after[name].cpu())
    ]
    return [f"{name} changed although it is not trained" for name in sorted(changed)]


def _log(world: World, states: list[ServerState]) -> list[str]:
    problems, recipe, test = [], world.recipe, world.task.test
    lines = log_lines(world.folder)
    if [line.get("round") for line in lines] != [state.round for state in states[1:]]:
        return [*problems, "the rounds in rounds.jsonl are not those that were released"]
    if msgspec.to_builtins(world.result.history) != msgspec.to_builtins(read_rounds(world.folder)):
        problems.append("what Python is told is not what rounds.jsonl holds")
    model = copy.deepcopy(world.task.model)
    survey = survey_of(recipe, world.task)
    curve, paid = epsilon_by_round(recipe.plan), [t for t, _ in expected_payments(world)]
    for line, before, state in zip(lines, states, states[1:], strict=False):
        cost = curve[min(sum(t < state.round for t in paid), recipe.plan.rounds)]
        cost = cost if recipe.budget is None else min(cost, recipe.budget)
        if not math.isclose(line["epsilon"], cost, rel_tol=1e-9):
            problems.append("an ε in rounds.jsonl is not that of the rounds so far")
        asked = survey is not None and survey.question(before.survey) is not None
        asked = asked or _rescales(recipe, before.round)
        waits = asked or before.params is state.params
        step = 0.0 if waits else _step(recipe, before)
        if not math.isclose(line["server_rate"], step, rel_tol=1e-9):
            problems.append(
                f"the log's server rate of round {line['round']} is not the one promised"
            )
        if not math.isclose(line["clip_norm"], before.clip_norm, rel_tol=1e-9):
            problems.append("a clip norm in rounds.jsonl does not follow from the releases")
        # A budget that ends a run is known after its last round, but for one that a crash took.
        ended = world.result.exhausted is not None and states[-1].round not in world.record.lost
        last = states[-1].round if ended else recipe.plan.rounds
        due = state.round % recipe.evaluate_every == 0 or state.round == last
        expected: dict[str, float] = {}
        if test is not None and due:
            Layout.of(model).write(state.average, model)
            expected = evaluate(model, test, world.task.loss, world.task.metrics)
        told = line.get("metrics", {})
        told = told | {key: line[key] for key in ("accuracy", "loss") if key in line}
        if told.keys() != expected.keys() or not all(
            math.isclose(told[key], value, rel_tol=1e-4, abs_tol=1e-4)
            for key, value in expected.items()
            if math.isfinite(value)
        ):
            problems.append("metrics in rounds.jsonl are not those of the model on the test set")
    return list(dict.fromkeys(problems))


def _documents(world: World) -> list[str]:
    problems = []
    if (world.folder / "recipe.toml").read_bytes() != recipes.encode(world.recipe).encode():
        problems.append("recipe.toml is not the recipe that ran")
    summary = world.result.summary()
    known = world.result.statement | {"metrics": world.result.metrics}
    if summary["epsilon"] != known["epsilon"] or summary["metrics"] != known["metrics"]:
        problems.append("the answer of the run is not what its statement and log say")
    return problems


def _doubt(recipe: Any, norm: float) -> float:
    """The standard deviation of the noise in the share of updates inside the ball."""
    plan, clipping = recipe.plan, recipe.plan.clip_norm
    weight = clipping.indicator(norm) * plan.expected_cohort
    return plan.noise * clipping.contribution(norm) / weight


def _waits(recipe: Any, norm: float, inside: float | None, done: float) -> bool:
    """Whether nothing is learned, early on: the floor is looked for, with little noise.

    Or with more, but most that should be outside were inside, by two standard deviations.
    """
    clipping = recipe.plan.clip_norm
    if not isinstance(clipping, AdaptiveClipping) or inside is None or done > 0.05:
        return False
    surplus, doubt = inside - clipping.quantile, _doubt(recipe, norm)
    looked_for = clipping.floor is not msgspec.UNSET and doubt <= 0.05 and done <= 0.025
    return looked_for or (surplus > 0.5 - clipping.quantile / 2 and surplus > 2 * doubt)


def _exceeded(recipe: Any, before: float, norm: float, inside: float | None) -> float:
    """The largest norm with fewer updates inside than should be, by two standard deviations."""
    clipping = recipe.plan.clip_norm
    if not isinstance(clipping, AdaptiveClipping) or clipping.floor is msgspec.UNSET:
        return before
    missing = inside is not None and inside < clipping.quantile - 2 * _doubt(recipe, norm)
    return max(before, norm) if missing else before


def _next_norm(
    recipe: Any,
    norm: float,
    inside: float | None,
    t: int,
    model: torch.Tensor,
    exceeded: float,
    done: float,
) -> float:
    """Adaptive clipping as its docstring says it: C · exp(−η_t · s), s from −½ to ½.

    The way from the start counts as the rounds that it takes at 0.3 of the longest step. The upper
    limit is a share of the weights' length, or the start; the lower one a share of ``exceeded``,
    which falls from 1 to the floor while a share ``done`` of the rounds goes from 0 to 1.
    """
    clipping = recipe.plan.clip_norm
    if not isinstance(clipping, AdaptiveClipping) or inside is None:
        return norm
    away, quantile = min(max(inside, 0.0), 1.0) - clipping.quantile, clipping.quantile
    scaled = away / (2 * quantile) if away < 0 else away / (2 - 2 * quantile)
    trust = 1 / (1 + 4 * _doubt(recipe, norm) ** 2)
    age = max(0.0, t - abs(math.log(norm / clipping.start)) / (0.3 * 4.2 * trust))
    moved = norm * math.exp(-(0.2 + 4 * 0.7**age) * trust * scaled)
    if clipping.floor is not msgspec.UNSET and moved < norm:
        moved = min(norm, max(moved, exceeded * math.exp(done * math.log(clipping.floor))))
    length = float(model.double().square().sum().sqrt())
    most = 1e12 if clipping.of_weights is msgspec.UNSET else clipping.of_weights * length
    return min(max(moved, 1e-12), max(most, clipping.start), 1e12)


def _notes(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "notes.json").read_bytes())


def _without_digests(folder: Path) -> dict[str, Any]:
    values = json.loads((folder / "privacy.json").read_bytes())
    digests = values.pop("files")
    return values | {"ledger_head": None, "files": sorted(digests)}


def _payments(folder: Path) -> Any:
    account = read_ledger(folder / "ledger.sqlite")
    return {**account.opening, "run": None}, msgspec.to_builtins(account.entries)


def _differing(found: ServerState, state: ServerState) -> list[str]:
    """What of a state is not as it should be."""
    kept, kept_too = (
        one.memory
        | stall.named(one.votes)
        | {f"units.{name}": values for name, values in one.survey.items()}
        for one in (found, state)
    )
    same = {
        "the number": found.round == state.round,
        "the model": torch.equal(found.params, state.params),
        "the average of models": _near(found.average, state.average),
        "the clip norm": math.isclose(found.clip_norm, state.clip_norm, rel_tol=1e-9),
        "the norm that was exceeded": math.isclose(found.exceeded, state.exceeded, rel_tol=1e-9),
        **{n: _same(kept.get(n), kept_too.get(n)) for n in sorted(kept | kept_too)},
    }
    return [what for what, is_same in same.items() if not is_same]


def _same_question(one: Question | Slopes | None, other: Question | Slopes | None) -> bool:
    if not isinstance(one, Question) or not isinstance(other, Question):
        return one == other
    tensors = ((one.mean, other.mean), (one.reach, other.reach), (one.asked, other.asked))
    return one.kind == other.kind and all(torch.equal(*pair) for pair in tensors)


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return torch.equal(one, other) if one is not None and other is not None else one is other


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal but for the last bit of an average's weight."""
    room = 2.0**-22 * other.abs() + 1e-30
    return one.shape == other.shape and bool(((one - other).abs() <= room).all())
