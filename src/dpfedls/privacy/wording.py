"""The privacy statement in words: its sentences, and one page of Markdown for people to sign."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from dpfedls.privacy.observers import Nodes

LedgerKind: TypeAlias = Literal["durable", "memory"]

_TRUST = {
    "simulation": "one machine holds everyone's data; nobody is protected from it",
    "deployed": "one machine holds everyone's data and adds the noise; everyone else sees releases "
    "only",
}


def trust(mode: str, nodes: Nodes | None) -> str:
    """Who sees what before noise is added."""
    if nodes is None:
        return _TRUST[mode]
    return (
        "the server sees each node's clipped sum and is trusted to add noise; a node sees releases "
        "and which of its own people are asked; everyone else sees releases only"
    )


def enforced(ledger: LedgerKind, most_samples: int | None, nodes: Nodes | None) -> list[str]:
    """What the code sees to itself."""
    paid = {
        "durable": "each round is paid for in the ledger before its noise is drawn",
        "memory": "each round is counted before its noise is drawn, for as long as the process "
        "lives",
    }
    few = [] if most_samples is None else [f"at most {most_samples} samples of a person are used"]
    alone = (
        "every update has ℓ2 norm at most the clip norm, measured in float64; one with NaN or "
        "infinity counts as zero"
    )
    summed = (
        "the sum of k people from one node has ℓ2 norm at most k clip norms, measured by the "
        "server in float64 (so each update's, where a node has one person); one with NaN or "
        "infinity counts as zero"
    )
    return [
        alone if nodes is None else summed,
        *few,
        "all clients weigh the same, and the denominator is the public expected cohort",
        "noise multiplier, denominator and number of rounds do not depend on anybody's data",
        paid[ledger],
        "denoising, averaging and evaluation see releases only",
    ]


def assumed(mode: str, ledger: LedgerKind, nodes: Nodes | None) -> list[str]:
    """What must hold beside, and nobody checked."""
    forgetful = "this is the only time it ran: no ledger on disk remembers another"
    one = "one person is one client and appears only once, with the same data if a run is resumed"
    public = (
        "how many people there are is public: rate, denominator and δ may follow it, and a person "
        "who is not there leaves an empty place"
    )
    rest = {
        "simulation": ["the deployed run samples, clips and adds noise as this one did"],
        "deployed": [
            "the server runs this code unaltered",
            "the operating system's entropy is good",
        ],
    }
    machine = {
        "simulation": [],
        "deployed": [
            "who takes part stays secret",
            "samples in memory are well formed: a malformed one stops a run before it starts, for "
            "all to see; a person whose samples are loaded later and are malformed counts as zero",
        ],
    }
    where = machine[mode] if nodes is None else _on_nodes(nodes)
    return [one, public, *rest[mode], *where, *([forgetful] if ledger == "memory" else [])]


def _on_nodes(nodes: Nodes) -> list[str]:
    whole = "a node with several people clips each of them: the server can check their sum only"
    if nodes.reveal_cohorts:
        secret = (
            "who takes part is not secret from the nodes: against them the rows of the table "
            "hold; from all others it stays secret"
        )
    else:
        secret = "that a person was asked stays between the server and that person's node"
    return [whole, secret]


def left_without_noise(nodes: Nodes | None) -> str | None:
    """What was let out with no protection at all, if anything was."""
    if nodes is None or not nodes.unprotected_client_metrics:
        return None
    return "accuracy and loss on people's own data, reported by nodes after every round"


def not_covered(test_from: str | None, nodes: Nodes | None) -> list[str]:
    """What ε says nothing about."""
    accuracy = "accuracy reported on samples that belong to the people trained on"
    if test_from is not None:
        accuracy += f" (here the test samples are from: {test_from})"
    bare = left_without_noise(nodes)
    return [
        *([] if bare is None else [f"what left WITHOUT NOISE: {bare}"]),
        "other models trained on the same people: what they cost adds up (dpfedls privacy total)",
        "hyper-parameters tuned on the same people's data",
        "data used to pre-train or to choose the model",
        "rates and units of inputs chosen by test samples, if these belong to the people trained "
        "on",
        "side channels: memory, traffic, who is asked to take part, and timing (a log of how long "
        "rounds took follows the size of their cohorts)",
        accuracy,
    ]


def diverged(round_: int) -> dict[str, Any]:
    """What the statement of a run says besides that ended early, at a model which is not finite."""
    because = "the model of this round is not finite: training diverged"
    return {"ended": {"round": round_, "because": because, "model": None}}


def text(values: dict[str, Any]) -> str:
    """The statement as one page of Markdown; numbers that JSON had to leave out are infinite."""
    how = values["mechanism"]
    lines = [
        "# Privacy statement",
        "",
        _SIMULATED if values["mode"] == "simulation" else _DEPLOYED,
        "",
    ]
    if not values["private"]:
        lines += ["**No noise was added: this run is NOT private.**", ""]
    if values.get("left_without_noise"):
        lines += [f"**Left WITHOUT NOISE, outside every ε: {values['left_without_noise']}.**", ""]
    if ended := values.get("ended"):
        lines += [
            f"**Ended at round {ended['round']} of {how['rounds']}: {ended['because']}. No model "
            "is handed out; what was spent is spent.**",
            "",
        ]
    lines += [
        f"**ε = {_number(values['epsilon'])} at δ = {values['delta']:.3g}** for each person "
        f"({values['relation'].replace('-', ' ')}), after {how['rounds_paid']} of {how['rounds']} "
        "rounds.",
        "",
        "| observer | ε | why |",
        "|---|---|---|",
        *(
            f"| {row['observer']} | {_number(row['epsilon'])} | {row['why']} |"
            for row in values["observers"]
        ),
        "",
        f"- **Unit of privacy:** {values['unit']}.",
        f"- **Released:** {values['released']}.",
        f"- **Trust:** {values['trust']}.",
        f"- **Mechanism:** {_SAMPLERS.get(how['sampler'], how['sampler'])}, "
        f"{how['expected_cohort']:g} of {how['num_clients']} clients expected in each round (rate "
        f"{how['rate']:g}); {_clipping(how)} Gaussian noise of standard deviation "
        f"{how['noise_stddev']:g} on the sum (noise multiplier "
        f"{how['noise_multiplier']:g}, sensitivity {_number(how['sensitivity'])}).",
        f"- **By accountant:** {_by_accountant(values)}",
        f"- **Gaussian DP:** μ = {_number(values['mu'])} covers the whole curve below.",
        f"- **Groups at the same δ:** {_groups(values)}.",
        "",
        "| δ | ε |",
        "|---|---|",
        *(f"| {point['delta']:.3g} | {_number(point['epsilon'])} |" for point in values["curve"]),
    ]
    for title, key in (
        ("Enforced by the code", "enforced"),
        ("Assumed, and not checked", "assumed"),
        ("Not covered", "not_covered"),
    ):
        lines += ["", f"## {title}", "", *(f"- {item}." for item in values[key])]
    versions = ", ".join(f"{name} {number}" for name, number in values["versions"].items())
    lines += ["", f"Ledger head: {values['ledger_head'] or 'none (kept in memory)'}. {versions}."]
    return "\n".join(lines) + "\n"


_SAMPLERS = {"PoissonSampling": "Poisson sampling", "FixedSizeSampling": "fixed-size sampling"}
_SIMULATED = (
    "**Simulation.** Noise and sampling came from a seed, so whoever knows the seed can undo them. "
    "The numbers say what the same run would cost when deployed; they protect nobody here."
)
_DEPLOYED = "**Deployed.** Noise and sampling came from the operating system's entropy."


def _clipping(how: dict[str, Any]) -> str:
    """One norm, or where it starts and what it follows; noise follows the norm."""
    start = _number(how["clip_norm"])
    if how["clipping"]["kind"] == "fixed":
        return f"each update clipped to {start};"
    return (
        f"each update clipped to a norm that starts at {start} and then follows the "
        f"{how['clipping']['quantile']:g} quantile of their lengths, which is estimated with noise "
        "inside this ε; in the first round,"
    )


def _by_accountant(values: dict[str, Any]) -> str:
    if not values["private"]:
        return "all say ∞, since no noise was added."
    said = ", ".join(
        f"{name} says nothing here" if value is None else f"{name} {_number(value)}"
        for name, value in values["epsilon_by_accountant"].items()
    )
    return (
        f"{said}. All are upper bounds on the same mechanism; the least of the sound bounds holds."
    )


def _groups(values: dict[str, Any]) -> str:
    groups = [(group["people"], group["epsilon"]) for group in values["group_privacy"]]
    said = [
        f"{people} people no finite bound"
        if cost is None or math.isinf(cost)
        else f"{people} people ε = {_number(cost)}"
        for people, cost in groups
    ]
    unbounded = [people for people, cost in groups if cost is None or math.isinf(cost)]
    if not unbounded:
        return ", ".join(said)
    why = f"δ grows by the factor k·e^((k−1)ε) for k people, and at k = {unbounded[0]} outgrows it"
    return f"{', '.join(said)} ({why if values['private'] else 'no noise was added'})"


def _number(value: float | None) -> str:
    return "∞" if value is None or math.isinf(value) else f"{value:.4g}"
