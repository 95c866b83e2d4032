"""What a recipe's TOML leaves open, filled in before it is decoded."""

from __future__ import annotations

from typing import Any

import msgspec

from dpfedls.auto.choices import LOCAL, SCHEDULE, SMOOTHING, WHY, plan_for
from dpfedls.errors import InputError
from dpfedls.tasks.task import usual_people


def filled(values: dict[str, Any]) -> dict[str, Any]:
    """A recipe that gives ``calibrate.epsilon`` and no sampler, with the rest chosen for it.

    What the table does say stays.
    """
    calibrate, plan = values.get("calibrate"), values.get("plan", {})
    if not isinstance(calibrate, dict) or "epsilon" not in calibrate or not isinstance(plan, dict):
        return values
    if "sampler" in plan or "noise_multiplier" in plan:
        return values
    numbers = (calibrate["epsilon"], *(plan.get(key) for key in ("num_clients", "rounds", "delta")))
    if any(isinstance(value, str | bool) for value in numbers):
        return values  # decoding names the key whose type is wrong
    people = plan.get("num_clients", usual_people(values.get("task")))
    if not isinstance(people, int):
        raise InputError(
            "the recipe does not say how many people there are, on which the plan depends; give "
            "plan.num_clients"
        )
    chosen, why = plan_for(people, calibrate["epsilon"], plan.get("delta"), plan.get("rounds"))
    given = {*values, *(f"plan.{key}" for key in plan)}
    return {
        "local": msgspec.to_builtins(LOCAL),
        "denoiser": msgspec.to_builtins(SMOOTHING),
        "server_rate": "auto",
        "schedule": SCHEDULE,
        **values,
        "plan": msgspec.to_builtins(chosen) | plan,
        "chosen": {key: line for key, line in (why | WHY).items() if key not in given},
    }
