"""Whether every release was paid for: before its noise, on disk, once, and at its price."""

from __future__ import annotations

import json

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
    if [entry.nonce for entry in entries] != [nonce for seen in rounds for nonce in seen.nonces]:
        problems.append("the ledger's payments are not those of the releases")
    if len({entry.nonce for entry in entries}) < len(entries):
        problems.append("two releases share a nonce")
    if [entry.round for entry in entries] != [seen.number for seen in rounds]:
        problems.append("the ledger's rounds are not those that were released")
    if any(entry.event != plan.round_event for entry in entries):
        problems.append("a payment is not for what the plan's rounds do")
    if len(rounds) > plan.rounds:
        problems.append("there are more rounds than the plan has")
    stated = json.loads((world.folder / "privacy.json").read_bytes())
    claims = [(len(rounds), stated["epsilon"])]
    if world.recipe.budget is not None:
        claims.append((len(rounds), world.recipe.budget))
    lines = (world.folder / "rounds.jsonl").read_bytes().splitlines()
    claims += [(k, json.loads(line)["epsilon"]) for k, line in enumerate(lines, start=1)]
    if any(too_small(world, claim, k, noise_multiplier) for k, claim in claims):
        problems.append("an ε is smaller than what so many rounds with the noise added cost")
    return list(dict.fromkeys(problems))


def too_small(world: World, epsilon: float | None, rounds: int, noise_multiplier: float) -> bool:
    """Whether so many rounds cost more than ``epsilon`` at the plan's δ, by the second opinion."""
    plan = world.recipe.plan
    if epsilon is None or rounds == 0:
        return False
    if noise_multiplier <= 0:
        return True
    found = delta_at(epsilon, plan.sampler, plan.num_clients, noise_multiplier, rounds)
    return found > plan.target_delta * (1 + TOLERANCE)
