"""What the privacy commands and a plan refuse or warn of, each in one line."""

from __future__ import annotations

import logging

import pytest
from typer.testing import CliRunner

from dpfedls.commands.privacy import app
from dpfedls.errors import InputError
from dpfedls.privacy import PrivacyPlan
from dpfedls.privacy.accountants import check_promise
from dpfedls.sampling import PoissonSampling


def refusal(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert isinstance(done.exception, InputError)
    assert "\n" not in str(done.exception)
    return str(done.exception)


def test_a_rate_must_give_whole_people() -> None:
    """1.4 people of a million were once a cohort of one."""
    words = "epsilon --sampling fixed --clients 1000000 --rounds 10 --noise-multiplier 2 --rate"
    assert "for 1 use --rate 1e-06" in refusal(*words.split(), "1.4e-6")
    assert CliRunner().invoke(app, [*words.split(), "2e-6"]).exit_code == 0


def test_no_round_at_all_is_no_answer() -> None:
    words = "rounds --sampling poisson --clients 1000 --rate 0.1 --noise-multiplier 0.5 --epsilon"
    said = refusal(*words.split(), "0.01")
    assert "--epsilon 0.01 covers no round: one costs" in said
    assert CliRunner().invoke(app, [*words.split(), "8"]).exit_code == 0


def test_one_person_alone_has_no_usual_delta() -> None:
    words = "rounds --sampling poisson --clients 1 --rate 1 --noise-multiplier 5 --epsilon 8"
    assert "delta must be given for a population of one" in refusal(*words.split())
    assert CliRunner().invoke(app, [*words.split(), "--delta", "1e-5"]).exit_code == 0


def plan(delta: float, noise: float = 1.0) -> PrivacyPlan:
    return PrivacyPlan(
        sampler=PoissonSampling(rate=0.1),
        num_clients=1000,
        rounds=5,
        clip_norm=1.0,
        noise_multiplier=noise,
        delta=delta,
    )


def test_a_delta_that_promises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Refused above 10/N, warned of once from 1/N on, silent below; no noise, no promise."""
    words = "rounds --sampling poisson --clients 1000 --rate 0.1 --noise-multiplier 2 --epsilon 8"
    assert "promises nothing to 1000 people" in refusal(*words.split(), "--delta", "0.5")
    with pytest.raises(InputError, match="promises nothing to 1000 people"):
        plan(0.5)
    assert not plan(0.5, noise=0.0).is_private
    check_promise.cache_clear()
    with caplog.at_level(logging.WARNING, logger="dpfedls"):
        plan(0.99e-3)
        assert not caplog.records
        plan(1e-3)
        plan(1e-3)
    assert [r.getMessage()[:13] for r in caplog.records] == ["delta = 0.001"]
