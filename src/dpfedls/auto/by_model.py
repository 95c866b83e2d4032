"""What ``train(epsilon=…)`` chooses once it knows model and loss: rates, norm, local training.

Three kinds of loss: of scores, as cross-entropy is; with an exponential; and with the units of its
targets, as a squared error is. No ε depends on any of it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from msgspec.structs import replace
from torch import Tensor, nn

from dpfedls.auto.choices import LOCAL, LOCAL_FIELDS
from dpfedls.auto.inputs import MANY, Usual
from dpfedls.auto.planner import MOST_RATE, ROUNDS, at_the_limit, little_noise
from dpfedls.auto.rate import (
    IN_CLIP_NORMS,
    IN_CLIP_NORMS_OF_NETWORK,
    LEARNING_RATE,
    Rates,
    made_up,
    rates_on,
)
from dpfedls.people.losses import Loss
from dpfedls.people.rescale import Rescale, last_layer
from dpfedls.people.samples import Samples, as_input
from dpfedls.privacy.clipping import AdaptiveClipping
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.stepping import NoiseRate, Schedule, ServerRate, noise_gathered

# Where a rate at its limit gathers no more noise than the model bears, the limit slows learning and
# not noise. Then short local training and long steps of the server lead to a better model, for the
# average of individual optima is not the joint optimum.
MOST_RATE_FOR_MANY = 20.0  # the limit of the server rate there
SHORTER = 8.0  # the learning rate divided by this
SHORTEST = 16.0  # and after a vote that learning stalls: the best of 4, 8 and 16

# And with rounds enough, one pass over one's own samples does better than 25 short steps: by one to
# four points on tables and MNIST with 5,000 to 100,000 people; in 100 rounds it loses two.
PASS_SHORTER = 2.0  # the learning rate divided by this
PASS_RATE = 60.0  # the limit of the server rate: with 40 tables lose a point, with 80 six layers
PASS_RATE_OF_CONVOLUTIONS = 30.0  # whose weights act at every position; with 60 they lose, too

# With more noise three passes learn more than one, and let clients drift apart less than 25 steps.
# 25 steps cope better with large units, so where units are unknown three passes are used only where
# noise is so low that 25 steps lose points.
PASSES = 3
PASSES_NOISE = 0.5  # in a weight, at most, where units are known
PASSES_NOISE_IF_UNKNOWN = 0.24
PASSES_RATE = 10.0  # the limit of the server rate; with 20 images in bytes are lost
OVERSHOOT = 8.0  # with 30 some raw tables are lost, with 1 whoever has few samples

# Where the loss has an exponential (auto.exponential) a few updates are long, and count.
CLIP_FEW = 0.95  # the quantile of the clip norm; of 0.8, 0.9 and 0.95 the best
CLIP_SOME = 0.8  # where noise leaves a server rate below the next: the norm is not found in time
ENOUGH_RATE = 1.0
# The most for learning rate × server rate, so that local training is as short as the server's steps
# can make up for. Of the usual rate, 1/16 stops half-way in much noise, 1/8 is too long in little.
SHORT = 0.004

# A network's outputs are a product of its weights: an update as long as they are makes the next
# one longer, and the norm follows. A linear model has no such limit, and prices ask for long ones.
OF_WEIGHTS = 0.5  # the most that the clip norm may be, as a share of the weights' norm
MORE = 4 / 3  # times the limit of the server rate

# Where one class is frequent the norm falls a hundredfold in ten rounds, elsewhere to a half over a
# whole run: so what it may lose, it may lose slowly.
FLOOR = 0.4
FLOOR_OF_PASSES = 0.5  # with little noise a long norm costs little
FLOOR_OF_CONVOLUTIONS = 0.1  # whose updates begin long: with 0.4 they lose half a point to two

# The last rounds may ask how sure a model may be: so many of all do as well as 5 %, or 10.
LAST = 0.03
LAST_NOISE = 0.1  # in a mean answer of norm 1: with more 200 people gain nothing
SHIFT_NOISE = 0.01  # with more, noise in each score costs up to a point

HARDLY_ANY = 0.05  # of the rounds, that ask for the units of usual columns

ALL = LOCAL_FIELDS | {"server_rate"}  # what may be left to us


class Fitted(NamedTuple):
    """What needs the model to be chosen."""

    server: ServerRate
    local: dict[str, Any]  # fields of LocalSGD; those left out stay as they are
    clip_norm: AdaptiveClipping | None  # None: as the plan has it
    why: dict[str, str]
    rounds_help: bool = True  # False: a plan of fewer rounds is better, if there is one
    rates: Rates = Rates(None, LEARNING_RATE)  # of which all this was made


class _Known(NamedTuple):
    plan: PrivacyPlan
    rates: Rates
    public: bool  # whether the inputs that the model was tried on are the server's own
    measured: bool  # whether the first rounds ask for the units of each column
    open: frozenset[str]  # what of ALL is left to us
    most: float  # the usual limit of the server rate
    gathered: float  # noise in a weight at server rate 1 and clip norm 1

    @property
    def source(self) -> str:
        """Of the inputs that the model was tried on."""
        return "the test inputs" if self.public else "random inputs of unit scale"

    @property
    def adapts(self) -> AdaptiveClipping | None:
        """The clip norm, if it is not a given number."""
        clipping = self.plan.clipping
        return clipping if isinstance(clipping, AdaptiveClipping) else None

    def in_clip_norms(self, noise: float, most: float) -> float:
        """The server rate with which a weight gathers noise of so many clip norms."""
        return min(most, noise / self.gathered) if self.gathered else most


def rates_for(
    plan: PrivacyPlan,
    schedule: Schedule,
    model: nn.Module,
    loss: Loss,
    *,
    samples: Samples,
    public: bool,
    measured: bool = False,
    open_: frozenset[str] = ALL,
) -> Fitted:
    """Server rate and local training, by the model's answers to public or random inputs.

    ``samples`` that are public, the server's own, are used; of others the shape alone, made up.
    ``measured``: people train in units that the first rounds find, where made-up inputs are alike.
    ``open_``: which of ``ALL`` are to be chosen. Long steps of the server go with short trainings,
    so neither is chosen where the other is given.
    """
    inputs, targets = samples if public else made_up(model, samples)
    rates = rates_on(model, inputs, loss, as_input(targets).cpu(), random=not public)
    gathered = noise_gathered(schedule, plan, 1.0)
    known = _Known(plan, rates, public, measured, open_, MOST_RATE[schedule], gathered)
    if rates.noise is not None:
        found = _of_scores(known, rates.noise)
    else:
        found = _with_exponential(known) if rates.exponential else _with_units(known)
    return found._replace(rates=rates)


def of_usual_inputs(plan: PrivacyPlan, model: nn.Module, loss: Loss, test: Samples) -> Usual:
    """What to make of inputs whose scale is usual.

    A linear model of targets with units learns from standardised ones: a squared error is as badly
    conditioned as its inputs. A network learns from inputs less their means where targets have
    units, whose loss it halves, or noise is small; it learns its own scale, and the rounds that ask
    for one are better spent on training. With more noise six layers lose a point or two by either,
    and so does a linear classifier of images with any noise.

    Columns of a table that lie within -1 and 1 are another matter: somebody has scaled them, and
    some hardly differ from person to person. A classifier needs weights for them that noise does
    not allow, so it learns from standardised ones. And where hardly any rounds are needed to ask, a
    linear classifier does for every table: less their means, rare classes are not outvoted.
    """
    rates = rates_on(model, test[0], loss, as_input(test[1]).cpu())
    has_units = rates.noise is None
    table = _is_table(test[0]) and not rates.convolves
    within = table and not has_units
    if rates.network:
        centred = has_units or at_the_limit(plan) <= PASSES_NOISE
        return Usual("centre" if centred else "keep", within)
    if rates.linear and has_units and not rates.exponential:
        return Usual("standardise")
    if rates.linear and within:
        return Usual("standardise", within, at_most=HARDLY_ANY)
    return Usual("keep", within)


def asking_for_scale(
    plan: PrivacyPlan, model: nn.Module, inputs: Any, found: Fitted
) -> tuple[Rescale | None, str]:
    """Whether the last rounds ask how sure a classifier of a table may be, and why."""
    rates, noise = found.rates, plan.answer_noise
    if rates.noise is None or rates.convolves or not _is_table(inputs):
        return None, "false: it was tried on classifiers of tables alone"
    if last_layer(model, inputs) is None:
        return None, "false: the model's last layer cannot take a scale in"
    rounds, shift = math.ceil(LAST * plan.rounds), noise <= SHIFT_NOISE
    if noise > LAST_NOISE:
        return None, "false: there is too much noise to ask how sure the model may be"
    of = "of each class" if shift else "in all"
    why = (
        f"{rounds} rounds at the end ask, with noise, how sure the model may be {of}: clipped "
        "updates make it too sure; its last layer takes the answer in"
    )
    return Rescale(rounds=rounds, shift=shift, slope=rates.slope), why


def _is_table(inputs: Any) -> bool:
    """Of few columns: as many as small images have are better left as they are."""
    floats = isinstance(inputs, Tensor) and inputs.is_floating_point()
    return floats and inputs.dim() == 2 and inputs.shape[1] < MANY


def _of_scores(known: _Known, noise: float) -> Fitted:
    """More is never wrong: noise is measured by how far it moves the scores."""
    most, little = known.most, little_noise(known.plan)
    falls = most > 1  # a constant rate was not tried with short trainings
    limited = falls and (little or most * known.gathered <= noise)  # by the rate, not by noise
    said = f"{noise:.2g}, the most that the model tolerates on {known.source}"
    convolves = known.rates.convolves
    if falls and known.plan.rounds >= max(ROUNDS) and known.open >= ALL:
        if limited and (known.public or known.measured or convolves):
            most = PASS_RATE_OF_CONVOLUTIONS if convolves else PASS_RATE
            return _one_pass(known, NoiseRate(noise=noise, at_most=most), said)
        unknown = not known.public and not known.measured
        noisiest = PASSES_NOISE_IF_UNKNOWN if unknown else PASSES_NOISE
        if at_the_limit(known.plan) <= noisiest and not convolves:
            return _few_passes(known, NoiseRate(noise=noise, at_most=PASSES_RATE), said)
    local, why = _usual(known)
    shorten = SHORTEST
    if limited and little:
        most = MOST_RATE_FOR_MANY
    elif limited and known.open >= {"server_rate", "learning_rate"}:
        most, shorten = MOST_RATE_FOR_MANY, SHORTEST / SHORTER
        local["learning_rate"] = steps = known.rates.learning / SHORTER
        length = f"1/{SHORTER:g} of steps that the model tolerates on {known.source}"
        why |= _learning(steps, f"{length}, and a larger server rate: noise is little")
    floor = FLOOR_OF_CONVOLUTIONS if convolves else FLOOR
    why |= _server(said, most) | _votes(shorten) | _heard(known, floor)
    local["shorten"] = shorten
    return Fitted(NoiseRate(noise=noise, at_most=most), local, _floored(known, floor), why)


def _one_pass(known: _Known, server: NoiseRate, noise: str) -> Fitted:
    """Little noise: many short steps of the server, each by a pass of everybody in the cohort."""
    steps = float(f"{known.rates.learning / PASS_SHORTER:.2g}")
    length = f"1/{PASS_SHORTER:g} of steps that the model tolerates on {known.source}"
    local = {"steps": None, "epochs": 1, "most_steps": LOCAL.steps, "learning_rate": steps}
    why = {
        "local.epochs": "1: one pass over one's own samples, and a larger server rate: there is "
        "little noise, and longer local training lets clients drift apart",
        "local.most_steps": f"{LOCAL.steps}: so that a person with very many samples does no more",
        "local.retry_step": "none: a short pass does not overshoot",
    }
    local |= {"retry_step": None, "shorten": None}
    floor = FLOOR_OF_CONVOLUTIONS if known.rates.convolves else FLOOR_OF_PASSES
    why |= _server(noise, server.at_most) | _learning(steps, length) | _votes(None)
    why |= _heard(known, floor)
    return Fitted(server, local, _floored(known, floor), why)


def _few_passes(known: _Known, server: NoiseRate, noise: str) -> Fitted:
    """Some noise: training long enough to learn, and too short for clients to drift apart."""
    local, why = _usual(known)
    local |= {"steps": None, "epochs": PASSES, "most_steps": LOCAL.steps}
    local |= {"retry_step": None, "overshoot": OVERSHOOT, "shorten": SHORTEST}
    why |= {
        "local.epochs": f"{PASSES}: so many passes over one's own samples, and a larger server "
        "rate: with this noise and these rounds longer local training lets clients drift apart",
        "local.most_steps": f"{LOCAL.steps}: so that a person with very many samples does no more",
        "local.retry_step": "none: it is for 25 steps",
        "local.overshoot": f"{OVERSHOOT:g}: a client whose first step would take away so "
        "many times its loss has inputs in large units, and trains again with shorter steps",
    }
    why |= _server(noise, server.at_most) | _votes(SHORTEST) | _heard(known, FLOOR_OF_PASSES)
    return Fitted(server, local, _floored(known, FLOOR_OF_PASSES), why)


def _floored(known: _Known, floor: float) -> AdaptiveClipping | None:
    """A clip norm that does not follow the updates of a frequent class to nothing."""
    return None if known.adapts is None else replace(known.adapts, floor=floor)


def _heard(known: _Known, floor: float) -> dict[str, str]:
    """Why the clip norm has a floor."""
    share = 0.5 if known.adapts is None else known.adapts.quantile
    length = "the median length of the updates"
    if share != 0.5:
        length = f"a length that {share:.0%} of the updates do not reach"
    falls = f"but falls slowly, to {floor:.0%} of what most updates once exceeded at the lowest"
    said = f"follows {length}, {falls}, so that rare classes count; 1 % more noise pays for it"
    return {"plan.clip_norm": said}


def _with_units(known: _Known) -> Fitted:
    """Noise is measured in clip norms, which follow the units."""
    noise, most, clip_norm = IN_CLIP_NORMS, known.most, None
    why = {}
    if known.rates.network and known.adapts is not None:
        noise, most = IN_CLIP_NORMS_OF_NETWORK, MORE * most
        clip_norm = replace(known.adapts, of_weights=OF_WEIGHTS)
        why["plan.clip_norm"] = (
            f"follows the length of {clip_norm.quantile:.0%} of the updates, up to "
            f"{OF_WEIGHTS:g} of the weights' own: in a network longer ones make the next longer "
            "still; 1 % more noise pays for it"
        )
    server = known.in_clip_norms(noise, most)
    local, usual = _usual(known)
    why |= _server(f"{noise:g} clip norms in the whole run", most) | usual
    # After a stall the server's steps would be 16 times as long, and the norm grows back in time:
    # by a squared error 200 people at ε = 8 ended at a loss of 1e7. Bounded gradients never did.
    shorten = SHORTEST if known.rates.bounded else None
    why |= _votes(SHORTEST)
    if shorten is None:
        why["local.shorten"] = "none: where gradients grow, longer server steps may diverge"
    return Fitted(server, local | {"shorten": shorten}, clip_norm, why)


def _with_exponential(known: _Known) -> Fitted:
    """A few people's updates are long, and count; each alone would go too far."""
    adapts, steps, most = known.adapts, known.rates.learning, known.most
    local, why = _usual(known)
    # With a norm that is given, short updates would be lost in the noise.
    short = adapts is not None and "learning_rate" in known.open
    most = MOST_RATE_FOR_MANY if short else most
    server = known.in_clip_norms(IN_CLIP_NORMS, most)
    clip_norm = None
    if adapts is not None:
        few = CLIP_FEW if server >= ENOUGH_RATE else CLIP_SOME
        clip_norm = replace(adapts, quantile=few)
        why["plan.clip_norm"] = (
            f"follows a length that {few:.0%} of the updates do not reach: the loss has an "
            "exponential, so a few are long and count; 1 % more noise pays for it"
        )
    if short:
        steps = float(f"{min(steps, SHORT) / max(server, 1.0):.2g}")
        length = (
            f"steps that the model tolerates on {known.source}, or shorter, as the loss has an "
            "exponential and the server's are long"
        )
        local["learning_rate"] = steps
        why |= _learning(steps, length)
    local["shorten"] = None if short else SHORTEST
    why |= _server(f"{IN_CLIP_NORMS:g} clip norms in the whole run", most)
    return Fitted(server, local, clip_norm, why | _votes(local["shorten"]), rounds_help=False)


def _usual(known: _Known) -> tuple[dict[str, Any], dict[str, str]]:
    """The learning rate where nothing asks for another, and why."""
    steps = known.rates.learning
    why = _learning(steps, f"steps that the model tolerates on {known.source}")
    return {"learning_rate": steps}, why


def _server(noise: str, most: float) -> dict[str, str]:
    said = f"so large that every weight gathers noise of {noise}"
    return {"server_rate": f"{said}; but at most {most:.3g}"}


def _learning(steps: float, length: str) -> dict[str, str]:
    return {"local.learning_rate": f"{steps:g}: {length}; the clip norm follows their length"}


def _votes(shorten: float | None) -> dict[str, str]:
    said = "none: trainings are short from the start"
    if shorten is not None:
        said = (
            f"{shorten:g}: if cohorts vote that learning stalls, trainings become so many times "
            "shorter, and the server's steps longer; a vote costs no privacy"
        )
    return {"local.shorten": said}
