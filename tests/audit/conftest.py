"""Dozens of audits here pay for the same rounds: what those cost is composed once."""

from __future__ import annotations

import pytest

from dpfedls.privacy.accounting import pld


@pytest.fixture(autouse=True, scope="session")
def _composed_once():
    """By all that a composition is made from, so that bugs planted around it still show."""
    real, kept = pld.bound_for, {}

    def bound_for(rounds, decade):
        key = (*pld.shapes_of(rounds), rounds[0][0].sampler.relation, decade)
        if key not in kept:
            kept[key] = real(rounds, decade)
        return kept[key]._replace(rounds=rounds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pld, "bound_for", bound_for)
        yield
