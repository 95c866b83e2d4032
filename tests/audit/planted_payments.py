"""Bugs in what is paid, and in what is said of it."""

from __future__ import annotations

import importlib
from dataclasses import replace

from planting import wrap

from dpfedls.privacy import hash_chain
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.randomness import SystemStreams
from dpfedls.runs import run as run_module
from dpfedls.runs.folder import RunFolder
from dpfedls.server import Server


def statement_with(**changes):
    def plant(patch):
        wrap(patch, run_module, "statement", lambda real, *a, **k: real(*a, **k) | changes)

    return plant


def delta_of_everybody(patch):
    """In every place at once, so that nothing disagrees."""
    for module in (run_module, importlib.import_module("dpfedls.runs.verify")):
        wrap(patch, module, "statement", lambda real, *a, **k: real(*a, **k) | {"delta": 1e-9})


def ledger_rewound_on_resume(patch):
    """What was paid for and lost is forgotten, as where the account lies in the checkpoint."""

    def last_state(real, self, start):
        state = real(self, start)
        ledger = self.ledger
        ledger._connection.executescript("DROP TRIGGER no_delete; DROP TRIGGER no_update;")
        ledger._connection.execute("DELETE FROM entries WHERE seq > ?", (state.round + 1,))
        ledger.entries = dict.fromkeys(list(ledger.entries)[: state.round])
        ledger.heads = ledger.heads[: state.round + 2]
        return state

    wrap(patch, RunFolder, "last_state", last_state)


def spend_after_release(patch):
    def finish(real, self, state, total, noise, nonce):
        made = real(replace(self, ledger=MemoryLedger(self.plan)), state, total, noise, nonce)
        self.ledger.spend(self.plan.round_event, state.round, nonce)
        return made

    wrap(patch, Server, "finish_round", finish)


def not_on_disk(patch):
    text = hash_chain._SCHEMA.replace("synchronous = FULL", "synchronous = OFF")
    patch.setattr(hash_chain, "_SCHEMA", text)


def one_round_more(patch):
    module = importlib.import_module("dpfedls.privacy.ledger")
    wrap(patch, module, "_affordable", lambda real, plan, budget: real(plan, budget) + 1)


def nonce_by_round(patch):
    patch.setattr(SystemStreams, "nonce", lambda self, round_, device: f"{round_:032x}")


def epsilon_for_more_noise(patch):
    import msgspec

    def epsilon(real, spent, *args, **named):
        more = [
            (msgspec.structs.replace(event, noise_multiplier=1.05 * event.noise_multiplier), count)
            for event, count in spent
        ]
        return real(more, *args, **named)

    for name in ("accountants", "ledger", "statement", "curve"):
        module = importlib.import_module(f"dpfedls.privacy.{name}")
        if hasattr(module, "epsilon"):
            wrap(patch, module, "epsilon", epsilon)
        if hasattr(module, "profile"):
            wrap(patch, module, "profile", epsilon)
    importlib.import_module("dpfedls.privacy.curve")._by_round.cache_clear()
    importlib.import_module("dpfedls.privacy.statement")._cost.cache_clear()


BUGS = {  # name: (the bug, a word that the audit says, what else the audit is given)
    "spending after release": (spend_after_release, "before its payment", {}),
    "synchronous = OFF": (not_on_disk, "wait for the disk", {}),
    "budget + 1": (one_round_more, "would pay for another", {}),
    "ledger rewound on resume": (ledger_rewound_on_resume, "payments are not those", {}),
    "δ edited in the statement": (statement_with(delta=1e-9), "says delta", {}),
    "another δ stated everywhere": (delta_of_everybody, "δ that is stated", {}),
    "a statement that says more": (
        statement_with(cohorts=[3, 5]), "which no statement has", {},
    ),
    "nonce fixed by round": (nonce_by_round, "nonces", {}),
    "ε for 5 % more noise": (epsilon_for_more_noise, "an ε is smaller", {}),
}  # fmt: skip
