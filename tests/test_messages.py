"""What wrong calls are told, one line each; tests/messages keeps it, so a change shows as a diff.

``make snapshots`` writes them anew; read the diff before you commit it.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

import dpfedls as library
from dpfedls import InputError
from dpfedls.runs import recipes, simulate

MESSAGES = Path(__file__).with_name("messages")
PRIVACY = "--sampling poisson --clients 500 --rate 0.05"
COMMANDS = f"""
frobnicate
run
run syntetic
run nowhere.toml
run broken.toml
run binary.toml
run empty.toml
run unknown-task.toml
run no-such-code.toml
run synthetic --set plan.roundz=3
run synthetic --set plan
run synthetic --set plan.rounds.x=3
run synthetic --set plan.rounds=0
run synthetic --set plan.num_clients=abc
run synthetic --set plan.num_clients=true
run synthetic --set plan.sampler.kind=uniform
run synthetic --set plan.delta=1
run synthetic --set plan.noise_multiplier=-1
run synthetic --set local.learning_rate=fast
run synthetic --set denoiser.kind=median
run synthetic --set mode=real
run synthetic --set schedule=cosine
run synthetic --set server_rate=none
run synthetic --set engine=fast
run synthetic --set mode=deployed --set diagnose=true
run synthetic --device cuda:9
run synthetic --seed -1
run synthetic --log paper
run synthetic --out thesis
run synthetic --out file.txt
run automatic --set calibrate.epsilon=abc
run automatic --set calibrate.epsilon=0
run automatic --set plan.num_clients=abc
run automatic --set plan.num_clients=true
run automatic --set plan.num_clients=0
run automatic --set plan.rounds=many
run synthetic --set 'denoiser=[{{kind="laplacian",strength="much"}}]'
run svhn-5k
resume nowhere
report nowhere --out page.html
report finished
report finished --out thesis
demo --seeds 0
demo --out file.txt
attack nowhere
attack unfinished
audit nowhere
audit thesis
audit finished --set plan.rounds=2
audit synthetic --trials 0
audit synthetic --canaries -1
planner --out thesis
planner --out file.txt/planner.html
sweep synthetic
sweep synthetic --grid denoiser.strength
sweep synthetic --grid denoiser.strenght=0,1
sweep synthetic --grid plan.rounds=1,many
sweep synthetic --grid plan.rounds=1,2 --seeds 0
sweep synthetic --grid plan.rounds=1,2 --out file.txt
tune mine.py --grid server_rate=1,2
tune synthetic --grid plan.noise_multiplier=1,2
tune synthetic --grid server_rate=1,2 --highest accuracy --lowest loss
tune synthetic --grid server_rate=1,2 --out best.json
tune synthetic --grid server_rate=1,2 --price 0
tune synthetic --grid server_rate=1,2 --jobs 0
theory --case concave
theory --case convex --clients 0
reproduce table9
reproduce table2 --jobs 0
privacy plan --clients 0 --epsilon 1
privacy plan --clients many --epsilon 1
privacy plan --clients 5000 --epsilon 0
privacy plan --clients 5000 --epsilon 1 --delta 2
privacy plan --clients 5000 --epsilon 1 --cohort-at-most 0
privacy epsilon {PRIVACY} --rounds 0 --noise-multiplier 1
privacy epsilon {PRIVACY} --rounds 3 --noise-multiplier 1 --accountant moments
privacy epsilon --sampling fixed --clients 100 --rate 0.033 --rounds 3 --noise-multiplier 1
privacy epsilon --sampling fixed --clients 100 --rate 2 --rounds 3 --noise-multiplier 1
privacy epsilon --sampling poisson --clients 0 --rate 0.1 --rounds 3 --noise-multiplier 1
privacy noise --epsilon -1 {PRIVACY} --rounds 3
privacy noise --epsilon 2 {PRIVACY} --rounds 30 --accountant closed-form
privacy noise --epsilon 2 {PRIVACY} --rounds 30 --clip-norm 0
privacy rounds --epsilon 0.0001 --noise-multiplier 1 {PRIVACY}
privacy verify nowhere
privacy statement nowhere
privacy total
privacy total nowhere
privacy total finished --delta 0
deploy init thesis
deploy local nowhere.toml
deploy local synthetic --nodes 0
deploy local synthetic --out thesis
"""

CALLS = """
train(model=net, clients=people)
train(model=net, clients=people, epsilon=2.0, plan=plan)
train(model=net, clients=people, plan=plan, delta=1e-3)
train(model=net, clients=people, epsilon=0.0)
train(model=net, clients=people, epsilon="2")
train(model=net, clients=people[:9], epsilon=1.0)
train(model=net, clients=[], epsilon=2.0)
train(model=net, clients=(x, y), epsilon=2.0)
train(net, [list(zip(x, y)) for x, y in people], epsilon=2.0)
train(net, [(x, (y, y)) for x, y in people], epsilon=2.0)
train(net, [(x, {"kind": y}) for x, y in people], epsilon=2.0)
train(net, {"ann": frame}, epsilon=2.0)
train(net, frame.groupby("who"), epsilon=2.0)
train(model=net, clients=people, plan=plan, mode="deployed")
train(model=net, clients=people, plan=plan, mode="real")
train(model=net, clients=people, plan=plan, schedule="cosine")
train(model=net, clients=people, plan=plan, engine="fast")
train(model=net, clients=people, plan=plan, server_rate="big")
train(model=net, clients=people, plan=plan, local=torch.optim.SGD)
train(model=net, clients=people, plan=plan, device="cuda:9")
train(model=net, clients=people, plan=plan, seed=-1)
train(model=net, clients=people, plan=plan, population="patients")
train(model=net, clients=people, plan=plan, folder="thesis")
train(model=net, clients=people, plan=plan, folder="file.txt")
train(model=net, clients=people, plan=plan, test=x)
train(model=net, clients=people, plan=plan, loss=lambda outputs, targets: outputs.mean())
train(model=net, clients=people[:50], plan=plan)
train(model="net", clients=people, plan=plan)
train(model=nn.Linear, clients=people, plan=plan)
train(model=net, clients=[(x.to(torch.uint8), y) for x, y in people], plan=plan)
train(model=nn.Linear(9, 3), clients=[(x.to(torch.uint8), y) for x, y in people], plan=plan)
train(model=net, clients=[(x, y.float()) for x, y in people], plan=plan)
train(model=net, clients=[(x, y.numpy().astype(str)) for x, y in people], plan=plan)
train(model=nn.Linear(9, 3), clients=people, plan=plan)
train(model=nn.Linear(8, 2), clients=people, plan=plan)
train(model=nn.Linear(8, 1), clients=people, plan=plan)
train(model=net, clients=[(x, y[:, None]) for x, y in people], plan=plan)
train(model=net, clients=[(x, torch.eye(3)[y].long()) for x, y in people], plan=plan)
train(nn.Linear(8, 1), people, plan=plan, loss=nn.BCEWithLogitsLoss(reduction="none"))
train(nn.Linear(8, 1), people, plan=plan, loss=nn.MSELoss(reduction="none"))
train(nn.Bilinear(8, 8, 3), [((x, x), y) for x, y in people], plan=plan)
train(model=nn.Sequential(nn.BatchNorm1d(8), net), clients=people, plan=plan)
train(model=nn.Sequential(nn.Dropout(), net), clients=people, plan=plan)
train(model=nn.Identity(), clients=people, plan=plan)
train(model=net, clients=[(x[0], y[0][:2])], plan=plan)
train(model=net, clients=[(x[0] / 0, y[0]), *people[1:]], plan=plan)
train(nn.Linear(8, 1), [(x, y / 0) for x, y in people], plan=plan, loss=lambda o, t: o[:, 0] - t)
train(net, torch.utils.data.DataLoader(people), plan=plan)
train(net, people, plan=plan, test=torch.utils.data.DataLoader(people))
train(net, [{"x": x, "y": y} for x, y in people], plan=plan)
train(net, [(x, y + 1) for x, y in people], plan=plan)
train(net, [*people[1:], (x[0], y[0] - 100)], plan=plan)
train(net, [*people[1:], (x[0], y[0] - 1)], plan=plan)
train(net, [*people[1:], (x[0], y[0] - 1)], plan=plan, loss=nn.CrossEntropyLoss(reduction="none"))
train(net, [*people[1:], (x[0], y[0] + 1)], plan=plan, loss=nn.CrossEntropyLoss(reduction="none"))
train(net, [(x, y.numpy().astype(str).astype(object)) for x, y in people], plan=plan)
train(net, [(x.to_sparse(), y) for x, y in people], plan=plan)
train(nn.Conv2d(3, 2, 1), [(torch.ones(4, 2, 2, 3), y[0])] * 60, plan=plan)
train(nn.Conv2d(1, 2, 1), [(torch.ones(4, 2, 2), y[0])] * 60, plan=plan)
train(net, [(x.view(4, 4, 2), y) for x, y in people], plan=plan)
train(nn.Linear(8, 3).double(), people, plan=plan)
train(nn.Linear(8, 3, device="meta"), people, plan=plan)
train(net, people, plan=plan, loss=nn.CrossEntropyLoss)
train(net, people, plan=plan, loss=lambda outputs, targets: (outputs.argmax(1) != targets).float())
train(net, people, plan=plan, loss=lambda outputs, targets: -(1 - outputs.exp().sum(1)).log())
train(net, people, plan=plan, metrics=["accuracy"])
train(net, people, plan=plan, watch=print)
train(nn.Sequential(net, nn.Threshold(9, np.nan)), people, plan=plan)
train(nn.Bilinear(8, 8, 3), [({"input1": x, "input2": x}, y) for x, y in people], plan=plan)
train(net, people, plan=plan, folder=3)
train(net, people, plan=plan, folder="")
train(net, people, plan=plan, folder="new", population=3)
train(net, people, plan=plan, device=None)
train(net, people, plan=plan, seed="a")
train(net, people, plan=plan, seed=1.5)
train(net, people, plan=plan, watch=None)
train(net, people, plan=plan, watch=[3])
train(net, people, plan=plan, block_size="all")
train(net, people, plan=plan, server_rate=[1])
train(net, people, plan=plan, metrics={"mae": 3})
train(net, people, plan=plan, test=(x[0], y[0]), test_from=3)
train(net, people, plan="mnist")
train(net, people, plan={"rounds": 3})
train(net, people, epsilon=2.0, delta="small")
audit(net, people, plan=plan, folder=3)
audit(net, people, plan=plan, trials="many")
Task(people, "net")
Task(3, net)
Task(people, net, 3)
Task(people, net, loss="mse")
ClientData.from_arrays(x.flatten(0, 1), y.flatten(), None)
ClientData.from_arrays(x.flatten(0, 1), y.flatten(), range(7))
ClientData.from_arrays(x.flatten(0, 1), y.flatten(), np.full(240, np.nan))
PrivacyPlan(sampler=PoissonSampling(rate=0.1), num_clients=60, rounds=3, clip_norm=1.0, delta=0.5)
PrivacyPlan(sampler=PoissonSampling(rate=0.1), num_clients=60, rounds="many", clip_norm=1.0)
PrivacyPlan(sampler=PoissonSampling(rate=0.1), num_clients=60, rounds=3, clip_norm="1")
PrivacyPlan(sampler=PoissonSampling, num_clients=60, rounds=3, clip_norm=1.0)
PrivacyPlan(sampler=0.1, num_clients=60, rounds=3, clip_norm=1.0)
PrivacyPlan(sampler=FixedSizeSampling(cohort=100), num_clients=60, rounds=3, clip_norm=1.0)
LocalSGD(epochs=1, steps=5)
LocalSGD(epochs=1, learning_rate=-1)
LaplacianSmoothing(strength=-1)
load("nowhere", net)
load(3, net)
load("finished", net)
"""


@pytest.fixture
def place(dpfedls, tmp_path, monkeypatch):
    """A folder with a finished run, an unfinished one, and files that are something else."""
    monkeypatch.delenv("DPFEDLS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # not that of whoever tests
    recipe = recipes.read("synthetic", ["plan.num_clients=60", "plan.rounds=1"])
    simulate.start(recipe, tmp_path / "finished")
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "recipe.toml").write_text(recipes.encode(recipe))
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    (tmp_path / "file.txt").write_text("not a folder")
    (tmp_path / "broken.toml").write_text("task = \n")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.toml").write_text("")
    whole = recipes.encode(recipe)
    (tmp_path / "unknown-task.toml").write_text(whole.replace('"synthetic-logistic"', '"mnits"'))
    (tmp_path / "no-such-code.toml").write_text(
        whole.replace('"synthetic-logistic"', '"./mine.py:make"')
    )
    return tmp_path


def test_what_wrong_commands_are_told(dpfedls, place):
    said = []
    for line in COMMANDS.strip().splitlines():
        code, out, err = dpfedls(*shlex.split(line))
        told = err.replace(str(place), "HERE")
        assert (code, out, told.count("\n")) == (2, "", 1), (line, told)
        said.append(f"$ dpfedls {line}\n{told}")
    compare("commands.txt", "\n".join(said))


def test_what_wrong_calls_are_told(place):
    known = {name: getattr(library, name) for name in library.__all__}
    x, y = torch.randn(60, 4, 8, generator=torch.manual_seed(0)), torch.arange(240).view(60, 4) % 3
    plan = library.PrivacyPlan(
        sampler=library.PoissonSampling(rate=0.1), num_clients=60, rounds=1, clip_norm=1.0,
        noise_multiplier=1.0,
    )  # fmt: skip
    known |= {"torch": torch, "nn": torch.nn, "np": np, "x": x, "y": y, "plan": plan}
    known["frame"] = pandas.DataFrame({"who": [0, 1], "y": [0, 1]})
    known |= {"people": list(zip(x, y, strict=True)), "net": torch.nn.Linear(8, 3)}
    said = []
    for line in CALLS.strip().splitlines():
        with pytest.raises(InputError) as caught:
            eval(line, dict(known))
        told = str(caught.value).replace(str(place), "HERE")
        assert "\n" not in told, line
        said.append(f">>> {line}\n{told}\n")
    compare("python.txt", "\n".join(said))


def compare(name: str, said: str) -> None:
    path = MESSAGES / name
    if "DPFEDLS_SNAPSHOTS" in os.environ:
        path.write_text(said, "utf-8")
    assert said.splitlines() == path.read_text("utf-8").splitlines(), "if right: make snapshots"
