from __future__ import annotations

import re

import pytest
from msgspec import inspect

from dpfedls import InputError
from dpfedls.runs import recipes
from dpfedls.runs.explain import SYNONYMS, _keys


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        # as others call it
        ("local.lr=1", "local.learning_rate"),
        ("lr=1", "local.learning_rate"),
        ("server_lr=1", "server_rate"),
        ("plan.noise=1", "plan.noise_multiplier"),
        ("sigma=1", "plan.noise_multiplier"),
        ("plan.z=1", "plan.noise_multiplier"),
        ("plan.clip=1", "plan.clip_norm"),
        ("max_grad_norm=1", "plan.clip_norm"),
        ("local.batch=8", "local.batch_size"),
        ("num_users=9", "plan.num_clients"),
        ("plan.clients=9", "plan.num_clients"),
        ("plan.sampler.q=0.1", "plan.sampler.rate"),
        ("denoiser.sigma=1", "denoiser.strength"),
        ("sigma_ls=1", "denoiser.strength"),
        ("plan.eps=1", "calibrate.epsilon"),
        # the right name in the wrong table
        ("plan.epsilon=1", "calibrate.epsilon"),
        ("epsilon=1", "calibrate.epsilon"),
        ("rounds=3", "plan.rounds"),
        ("learning_rate=1", "local.learning_rate"),
        ("epochs=1", "local.epochs"),
        ("plan.rate=0.1", "plan.sampler.rate"),
        ("cohort=5", "plan.sampler.cohort"),
        ("strength=1", "denoiser.strength"),
        ("plan.seed=1", "seed"),
        # misspelt, here or elsewhere
        ("plan.roundz=3", "plan.rounds"),
        ("roundz=3", "plan.rounds"),
        ("denoiser.strenght=1", "denoiser.strength"),
    ],
)
def test_the_key_that_was_meant_is_named(setting, meant):
    key = setting.partition("=")[0]
    with pytest.raises(InputError, match=re.escape(f"'{key}'; did you mean '{meant}'?")) as caught:
        recipes.read("synthetic", [setting])
    assert "\n" not in str(caught.value)


def test_a_key_of_another_kind_is_said_to_be_one():
    with pytest.raises(InputError, match=r"it belongs to plan\.sampler\.kind = 'fixed'"):
        recipes.read("synthetic", ["plan.sampler.cohort=5"])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ('denoiser=[{kind="laplacian",strenth=1}]', "key 'denoiser[0].strenth'; did you mean 'den"),
        ('denoiser=[{kind="laplacian"},{kind="momenta"}]', "value of denoiser[1].kind: 'momenta'"),
        ('denoiser=[{kind="momentum",strength=1}]', "it belongs to denoiser.kind = 'laplacian'"),
        ("denoiser=[{strength=1}]", "synthetic: denoiser[0].kind is missing"),
        ("chosen.a=1", "synthetic: a value of chosen = {'a': 1} must be text"),
    ],
)
def test_what_is_wrong_in_a_list_or_a_free_table_is_said_too(setting, said):
    with pytest.raises(InputError, match=re.escape(said)):
        recipes.read("synthetic", [setting])


def test_where_nothing_comes_to_mind_nothing_is_made_up():
    with pytest.raises(InputError, match=r"'local\.frobnicate'; known: local\.batch_size"):
        recipes.read("synthetic", ["local.frobnicate=5"])


def test_every_synonym_leads_to_a_key_and_hides_none():
    keys = {key.name for key in _keys(inspect.type_info(recipes.Recipe))}
    assert set(SYNONYMS.values()) <= keys
    assert not set(SYNONYMS) & keys
