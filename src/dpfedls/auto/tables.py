"""What a recipe's TOML leaves open, filled in before it is decoded."""

from __future__ import annotations

from typing import Any

import msgspec

from dpfedls.auto.choices import LOCAL, SCHEDULE, SMOOTHING, WHY, plan_for
from dpfedls.errors import InputError
from dpfedls.tasks.task import usual_people


def filled(values: dict[str, Any]) -> dict[str, Any]:
    """A recipe that gives ``calibrate.epsilon`` and no sampler, with every other key chosen for it.

    What the table does say stays. Noise is chosen by the recipe itself, with its own accountant.
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
    made = msgspec.to_builtins(chosen)
    del made["noise_multiplier"]
    tables = {"plan": made | plan}
    given = {*values, *(f"plan.{key}" for key in plan)}
    local = values.get("local", {})
    if isinstance(local, dict):
        usual = msgspec.to_builtins(LOCAL)
        given |= {f"local.{key}" for key in local}
        if "epochs" in local or "most_steps" in local:  # steps say how long a client trains, too
            del usual["steps"]
            given.add("local.steps")
        if "epochs" in local or "steps" in local:
            # It is made for 25 steps: few of 0.3 clip norms all end inside the ball, and the norm
            # that follows them falls to nothing.
            del usual["retry_step"]
            given.add("local.retry_step")
        if "clip_norm" in plan:  # votes need one that adapts
            given.add("local.shorten")
        tables["local"] = usual | local
    return {
        "denoiser": msgspec.to_builtins(SMOOTHING),
        "server_rate": "auto",
        "schedule": SCHEDULE,
        **values,
        **tables,
        "chosen": {key: line for key, line in (why | WHY).items() if key not in given},
    }
