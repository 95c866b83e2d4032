"""Whether every release was paid for: before its noise, on disk, once, and at its price."""

from __future__ import annotations

import json
import math

from dpfedls.auditing.accounting import TOLERANCE, delta_at
from dpfedls.auditing.worlds import World
from dpfedls.privacy.account import read_ledger


def payment_problems(world: World, noise_multiplier: float) -> list[str]:
    """What is wrong with a run's account; ``noise_multiplier`` is what was measured, not said."""
    plan, rounds = world.recipe.plan, list(world.record)
    problems = [text for seen in rounds for text in seen.paid if text]
    if not world.durable:
        problems.append("the ledger does not wait for the disk (synchronous is not FULL)")
    if not world.ends:
        problems.append("when all rounds are spent, the ledger would pay for another")
    entries = read_ledger(world.folder / "ledger.sqlite").entries
    expected = expected_payments(world)
    if [entry.nonce for entry in entries] != [nonce for _, nonce in expected]:
        problems.append("the ledger's payments are not those of the releases and of what was lost")
    if len({entry.nonce for entry in entries}) < len(entries):
        problems.append("two releases share a nonce")
    if [entry.round for entry in entries] != [t for t, _ in expected]:
        problems.append("the ledger's rounds are not those that were released")
    if any(entry.event != plan.round_event for entry in entries):
        problems.append("a payment is not for what the plan's rounds do")
    ended = world.recipe.budget is not None and world.result.exhausted is not None
    if len(rounds) != plan.rounds and not ended:
        problems.append("there are more, or fewer, rounds than the plan has")
    stated = json.loads((world.folder / "privacy.json").read_bytes())
    promised = plan.num_clients**-1.1 if plan.delta is None else plan.delta
    if not math.isclose(stated["delta"], promised, rel_tol=1e-9):
        problems.append("the δ that is stated is not the plan's")
    claims = [(len(expected), stated["epsilon"])]
    if world.recipe.budget is not None:
        claims.append((len(expected), world.recipe.budget))
    lines = (world.folder / "rounds.jsonl").read_bytes().splitlines()
    claims += [(k, json.loads(line)["epsilon"]) for k, line in enumerate(lines, start=1)]
    if any(too_small(world, claim, k, noise_multiplier) for k, claim in claims):
        problems.append("an ε is smaller than what so many rounds with the noise added cost")
    return list(dict.fromkeys(problems))


def expected_payments(world: World) -> list[tuple[int, str]]:
    """Rounds and nonces of all payments there should be, in order.

    What was paid for and lost in the crash is paid again only if its noise is another.
    """
    found: list[tuple[int, str]] = []
    for seen in world.record:
        lost = world.record.lost.get(seen.number)
        nonces = [*([lost] if lost is not None else []), *seen.nonces]
        found += [(seen.number, nonce) for nonce in dict.fromkeys(nonces)]
    paid = {t for t, _ in found}
    return found + [(t, nonce) for t, nonce in world.record.lost.items() if t not in paid]


def too_small(world: World, epsilon: float | None, rounds: int, noise_multiplier: float) -> bool:
    """Whether so many rounds cost more than ``epsilon`` at the plan's δ, by the second opinion."""
    plan = world.recipe.plan
    if epsilon is None or rounds == 0:
        return False
    if noise_multiplier <= 0:
        return True
    found = delta_at(epsilon, plan.sampler, plan.num_clients, noise_multiplier, rounds)
    return found > plan.target_delta * (1 + TOLERANCE)
