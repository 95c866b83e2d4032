"""A run of an earlier version verifies by its facts; earlier/ was made by commit f5a3cc1."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import pytest

from dpfedls.auditing.kept import kept_notes, kept_problems
from dpfedls.privacy.earlier_words import ADDED, REWORDED, in_present_words
from dpfedls.privacy.observers import Nodes
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.privacy.statement import statement
from dpfedls.runs import recipes
from dpfedls.runs import verify as verifying
from dpfedls.runs.seal import seal
from dpfedls.runs.simulate import start
from dpfedls.runs.verify import EARLIER, read_statement, verify
from dpfedls.sampling import FixedSizeSampling, PoissonSampling

SEALED = Path(__file__).with_name("earlier")
SENTENCES = Path(__file__).with_name("sentences.txt")
IN_WORDS = ("unit", "released", "observers", "trust", "enforced", "assumed", "not_covered")


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(SEALED, tmp_path / "copy"))


def sealed_anew(folder, change):
    """The hardest case: whoever altered the statement made its digests match."""
    values = read_statement(folder)
    del values["files"]
    change(values)
    seal(folder, values)


def leaves(values, path=()):
    """The path of every single value."""
    if isinstance(values, dict | list) and values:
        for key, item in values.items() if isinstance(values, dict) else enumerate(values):
            yield from leaves(item, (*path, key))
    else:
        yield path


def at(values, path):
    for key in path:
        values = values[key]
    return values


def other(value):
    """The same kind of value, not the same."""
    kinds = {bool: lambda: not value, str: lambda: value + "!", type(None): lambda: 1.0}
    return kinds.get(type(value), lambda: value * 1.01 + 1)()


def test_a_run_of_an_earlier_version_is_valid_and_its_wording_is_noted(copy):
    found = verify(copy)
    assert (found["valid"], found["notes"]) == (True, [EARLIER]), found["problems"]
    present = statement_of(copy)
    sealed_anew(copy, lambda values: values.update(in_present_words(values, present)))
    found = verify(copy)
    assert (found["valid"], found["notes"]) == (True, []), found["problems"]


def test_an_audit_of_it_judges_the_facts_of_its_page_and_says_who_made_it(copy):
    assert kept_problems(copy) == []
    assert [note.partition(" (")[0] for note in kept_notes(copy)] == [
        "report.html was made by another version of dpfedls"
    ]
    page = copy / "report.html"
    shown = page.read_text("utf-8")
    wrong = {"0.4138": "0.2138", "rounds = 3": "rounds = 30"}
    for (right, other), said in zip(wrong.items(), ("ε = 0.4138", "the recipe"), strict=True):
        assert right in shown
        page.write_text(shown.replace(right, other), "utf-8")
        sealed_anew(copy, lambda values: None)
        [problem] = kept_problems(copy)
        assert problem.startswith(f"report.html does not show {said}")


def test_the_page_of_this_version_is_still_made_again_word_for_word(tmp_path):
    folder = tmp_path / "run"
    start(recipes.read("synthetic", ["plan.num_clients=60", "plan.rounds=1"]), folder)
    assert (kept_problems(folder), kept_notes(folder)) == ([], [])
    page = folder / "report.html"
    page.write_bytes(page.read_bytes() + b"<!-- cohort of 6 -->")
    sealed_anew(folder, lambda values: None)
    assert kept_problems(folder) == [
        "report.html is not the page that this version makes of log and statement"
    ]


def test_each_fact_and_each_sentence_of_it_still_counts(copy, monkeypatch):
    """Every value in turn, with digests to match; what only the seal guards is left out."""
    whole = read_statement(copy)
    known = statement_of(copy)
    monkeypatch.setattr(verifying, "statement", lambda *_, **__: known)
    paths = [p for p in leaves(whole) if p[0] not in ("files", "versions", "test_from")]
    assert len(paths) > 70
    for path in paths:
        if path == ("mechanism", "most_samples"):
            continue

        def change(values, path=path):
            at(values, path[:-1])[path[-1]] = other(at(whole, path))

        shutil.copy(SEALED / "privacy.json", copy / "privacy.json")
        sealed_anew(copy, change)
        found = verify(copy)
        assert not found["valid"], path
        assert found["notes"] == [], path


def test_a_sentence_left_out_or_put_in_is_noticed(copy):
    for key in ("enforced", "assumed", "not_covered", "observers"):
        for change in (list.pop, lambda lines: lines.append(lines[0])):
            shutil.copy(SEALED / "privacy.json", copy / "privacy.json")
            sealed_anew(copy, lambda values, key=key, change=change: change(values[key]))
            assert f"privacy.json says {key}[" in verify(copy)["problems"][0]


@pytest.mark.parametrize(
    "name", ["recipe.toml", "rounds.jsonl", "ledger.sqlite", "model.safetensors", "report.html"]
)
def test_its_files_are_held_to_their_digests(copy, name):
    (copy / name).write_bytes((copy / name).read_bytes() + b"\n")
    assert not verify(copy)["valid"]


def statement_of(folder):
    plan, mode, nodes = verifying.read_promise(folder)
    stated = read_statement(folder)
    told = {
        "ledger_head": stated["ledger_head"],
        "most_samples": stated["mechanism"]["most_samples"],
        "test_from": stated["test_from"],
    }
    return statement(plan, mode=mode, nodes=nodes, **told)


def sentences():
    """All that a statement of this version may say."""
    for sampler in (PoissonSampling(rate=0.1), FixedSizeSampling(cohort=6)):
        plan = PrivacyPlan(
            sampler=sampler, num_clients=60, rounds=1, clip_norm=1.0, noise_multiplier=1.0
        )
        nodes = [Nodes(reveal_cohorts=True), Nodes(unprotected_client_metrics=True)]
        for mode, ledger, where in product(
            ("simulation", "deployed"), ("durable", "memory"), (None, *nodes)
        ):
            facts = statement(plan, mode=mode, ledger=ledger, nodes=where, most_samples=7)
            for key in IN_WORDS:
                yield from (at(facts, path) for path in leaves(facts[key], (key,)))


def test_what_a_statement_ever_said_is_still_understood():
    """To reword a sentence: the old one goes into earlier_words.py, the new one into the list."""
    said = {line for line in sentences() if isinstance(line, str)}
    listed = set(SENTENCES.read_text(encoding="utf-8").splitlines())
    assert sorted(said - listed) == [], "new sentences: list them, and name in ADDED what was added"
    assert sorted(listed - said - REWORDED.keys()) == [], "gone: name in REWORDED what says it now"
    assert {*REWORDED.values(), *ADDED} <= said
