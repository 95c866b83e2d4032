"""Recipes: what to train on what, under which promise, as data that decodes into the components."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import msgspec

from dpfedls.component import Component, check_types
from dpfedls.denoisers import (
    AdaptiveSmoothing,
    AnyDenoiser,
    JamesStein,
    LaplacianSmoothing,
    Momentum,
    SoftThreshold,
)
from dpfedls.denoisers.chain import chain
from dpfedls.denoising import AnyCallable, Identity
from dpfedls.errors import (
    InputError,
    require_finite,
    require_not_negative,
    require_positive,
    require_share,
)
from dpfedls.local_sgd import LocalSGD
from dpfedls.people.rescale import Rescale
from dpfedls.people.survey import Measured
from dpfedls.privacy.clipping import AdaptiveClipping
from dpfedls.privacy.observers import Nodes
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.privacy.population import account_path
from dpfedls.stepping import NoiseRate, Schedule, ServerRate
from dpfedls.tasks import own


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Choose the plan's noise so that the whole run costs ``epsilon``."""

    epsilon: float
    accountant: Literal["pld", "rdp", "closed-form"] = "pld"


class OwnDenoiser(Component, frozen=True, tag="own"):
    """A person's own denoiser: in TOML ``kind = "package.module:Name"`` and the settings it takes.

    It stands here as data; ``built`` loads the code.
    """

    name: str
    settings: dict[str, Any] = msgspec.field(default_factory=dict)


NamedDenoiser: TypeAlias = AnyDenoiser | OwnDenoiser
_FEWEST = 1e-3  # people expected in a round
PYTHON = "given in Python"  # the task of a run that dpfedls.train started with objects


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run, complete: the same recipe and seed give the same model."""

    task: str  # a task of the package, or a person's own: package.module:make or ./file.py:make
    plan: PrivacyPlan
    local: LocalSGD
    denoiser: NamedDenoiser | list[NamedDenoiser] = msgspec.field(default_factory=Identity)
    calibrate: Calibration | None = None
    server_rate: ServerRate | Literal["auto"] = 1.0  # η_g; "auto": by the noise the model tolerates
    schedule: Schedule = "constant"  # of the server rate; √(1 − t/T) or 1 − t/T: falls to zero
    averaging: float = 0.0
    standardise: bool | Literal["always"] | Measured = False  # by the test inputs; or measured
    rescale: bool | Rescale = False  # the scores, by what the last rounds ask
    budget: float | None = None  # stop before ε exceeds it; without one, the plan's rounds
    population: str | None = None  # full path of the account whose budget this run shares
    mode: Literal["simulation", "deployed"] = "simulation"
    nodes: Nodes | None = None  # people's data is on a federation's nodes; else on one machine
    seed: int = 0
    device: str = "cpu"
    engine: Literal["auto", "looped", "vmapped", "compiled"] = "auto"
    block_size: int | None = None
    evaluate_every: int = 1
    diagnose: bool = False  # simulation only: also evaluate on private samples, into its own file
    reproduces: str = ""
    chosen: dict[str, str] = msgspec.field(default_factory=dict)  # by dpfedls, with the reasons

    def __post_init__(self) -> None:
        if isinstance(self.server_rate, str) and self.server_rate != "auto":
            raise InputError(
                f"server_rate = {self.server_rate!r} is no number; give one, a table with kind = "
                '"noise", or "auto" to have it chosen'
            )
        check_types(self, "")
        if not isinstance(self.server_rate, NoiseRate | str):
            require_finite("server_rate", self.server_rate, "the paper uses 1")
        require_positive("evaluate_every", self.evaluate_every, "1 evaluates the model every round")
        require_not_negative("seed", self.seed, "any whole number from 0 up will do")
        require_share("averaging", self.averaging, "0 is the last iterate, 1 the uniform average")
        if self.block_size is not None:
            require_positive("block_size", self.block_size, "it is how many clients train at once")
        if self.budget is not None:
            require_finite("budget", self.budget, "it is the ε never to exceed")
        if self.population is not None:
            account_path(self.population)
        if self.plan.expected_cohort < _FEWEST:
            raise InputError(
                f"plan.sampler draws {self.plan.expected_cohort:.3g} people a round on average, so "
                "almost every cohort is empty: rounds spend privacy and learn nothing; raise its "
                "rate"
            )
        if isinstance(self.plan.clipping, AdaptiveClipping):
            _require_reach(self.local)
        elif self.local.shorten is not None:
            raise InputError(
                f"local.shorten = {self.local.shorten:g} needs cohorts that vote, in the "
                "coordinate that a clip norm which adapts has; leave shorten out, or give "
                'plan.clip_norm = { kind = "adaptive" }'
            )
        if isinstance(self.standardise, Measured):
            self.standardise.require_room(self.plan)
        if self.rescale is True:
            raise InputError(
                "rescale = true does not say in how many of the last rounds; give "
                "rescale = { rounds = 10 }, or false"
            )
        if isinstance(self.rescale, Rescale):
            self.rescale.require_room(self.plan, self.first_rounds)
            if self.nodes is not None:
                raise InputError(
                    "rescale is for runs on one machine, and [nodes] says that people's data is on "
                    "nodes, which are not asked; leave rescale out"
                )
        if self.standardise and self.nodes is not None:
            raise InputError(
                "standardise is for runs on one machine, and [nodes] says that people's "
                "data is on nodes, which are not told the units; leave standardise out, and scale "
                "inputs on the nodes by constants that you know"
            )
        if self.diagnose and self.mode == "deployed":
            raise InputError(
                "diagnose = true evaluates the model on people's own samples, and what leaves the "
                'private side must be noisy; leave it out, or use mode = "simulation"'
            )

    @property
    def method(self) -> str:
        """What people call it: DP-Fed, DP-Fed-LS, or the names of its denoisers."""
        steps = self.denoiser if isinstance(self.denoiser, list) else [self.denoiser]
        return ", then ".join(map(_method, steps)) or "DP-Fed"

    @property
    def strength(self) -> float | None:
        """σ of the smoothing, alone or in a chain: 0 without any, None where it adapts."""
        steps = self.denoiser if isinstance(self.denoiser, list) else [self.denoiser]
        found = [step for step in steps if isinstance(step, LaplacianSmoothing | AdaptiveSmoothing)]
        return getattr(found[0], "strength", None) if found else 0.0

    @property
    def own_code(self) -> list[str]:
        """The names of a person's own code that this recipe runs."""
        steps = self.denoiser if isinstance(self.denoiser, list) else [self.denoiser]
        named = [self.task, *(step.name for step in steps if isinstance(step, OwnDenoiser))]
        return [name for name in named if own.is_own(name)]

    @property
    def first_rounds(self) -> int:
        """How many of the first rounds may ask for units."""
        return self.standardise.most if isinstance(self.standardise, Measured) else 0

    @property
    def last_rounds(self) -> int:
        """How many of the last rounds ask how sure the model may be."""
        return self.rescale.rounds if isinstance(self.rescale, Rescale) else 0

    def resolved(self) -> Recipe:
        """The recipe with its noise chosen, so that the plan stands complete in the run folder."""
        if self.plan.noise_multiplier is not None:
            self._check_calibration()
            return self
        if self.calibrate is None:
            raise InputError(
                "the recipe says nothing about noise; give plan.noise_multiplier, or "
                "calibrate.epsilon to have it chosen"
            )
        plan = self.plan.calibrated(self.calibrate.epsilon, self.calibrate.accountant)
        return msgspec.structs.replace(self, plan=plan)

    def _check_calibration(self) -> None:
        if self.calibrate is None:
            return
        found = self.plan.epsilon(self.calibrate.accountant)
        if found > self.calibrate.epsilon:
            raise InputError(
                f"calibrate.epsilon = {self.calibrate.epsilon:g}, but plan.noise_multiplier = "
                f"{self.plan.noise_multiplier:g} gives ε = {found:.4g}; the two disagree about the "
                "promise: remove one of them"
            )


def _require_reach(local: LocalSGD) -> None:
    """Refuse steps so short that no client leaves the ball: the norm would follow them to nothing.

    Where everybody trains again, each step is about ``retry_step`` clip norms long, whatever the
    norm is. Whoever trains by epochs has at least one batch in each.
    """
    given = {kind: getattr(local, kind) for kind in ("steps", "epochs", "most_steps")}
    fewest, kind = min((count, kind) for kind, count in given.items() if count)
    if local.retry_step is None or fewest * local.retry_step > 1:
        return
    enough = math.floor(1 / local.retry_step) + 1
    raise InputError(
        f"local.retry_step = {local.retry_step:g} with local.{kind} = {fewest}: {fewest} steps of "
        f"{local.retry_step:g} clip norms end inside the ball, so a clip norm that adapts falls to "
        f"nothing; use {kind} = {enough} or more, or leave retry_step out"
    )


def _method(step: NamedDenoiser) -> str:
    if isinstance(step, Identity) or (isinstance(step, LaplacianSmoothing) and not step.strength):
        return "DP-Fed"
    if isinstance(step, LaplacianSmoothing):
        return f"DP-Fed-LS, strength {step.strength:g}"
    return step.name.rpartition(":")[2] if isinstance(step, OwnDenoiser) else _TITLES[type(step)]


_TITLES = {
    AdaptiveSmoothing: "DP-Fed-LS, adaptive strength",
    JamesStein: "James–Stein",
    SoftThreshold: "soft threshold",
    Momentum: "momentum",
}


def built(denoiser: NamedDenoiser | list[NamedDenoiser]) -> AnyCallable:
    """The denoiser that a recipe names, own code loaded; a list is a chain."""
    if isinstance(denoiser, list):
        return chain(*map(built, denoiser))
    if not isinstance(denoiser, OwnDenoiser):
        return denoiser
    made = own.load(denoiser.name, "denoiser.kind")
    if not isinstance(made, type) and not denoiser.settings:
        return made  # a function of a release
    try:
        return made(**denoiser.settings)
    except TypeError as error:
        raise InputError(f"denoiser.kind = {denoiser.name!r} cannot be made: {error}") from error
