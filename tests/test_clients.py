from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import dpfedls
from dpfedls import ClientData, InputError, LazyClients, LocalSGD
from dpfedls.auditing.membership import sides
from dpfedls.parameters import Layout
from dpfedls.people import stacking
from dpfedls.people.batches import schedule
from dpfedls.people.lazy import people
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.task import Task
from federations import linear_clients, local, plan, start_model


def shares(data):
    """Each client's features as lists."""
    return [data.client(j)[0].tolist() for j in range(data.num_clients)]


# ---- pairs


@pytest.mark.parametrize("convert", [torch.from_numpy, lambda array: array, np.ndarray.tolist])
def test_pairs_may_be_tensors_arrays_or_lists_in_a_list_or_by_key(convert):
    pairs = [(np.arange(4.0).reshape(2, 2), np.array([0, 1])), (np.ones((1, 2)), np.array([2]))]
    pairs = [tuple(map(convert, pair)) for pair in pairs]
    data = ClientData.from_pairs({"b": pairs[1], "a": pairs[0]})
    assert shares(data) == shares(ClientData.from_pairs(pairs)) == [[[0, 1], [2, 3]], [[1, 1]]]
    assert data.client(0)[0].dtype == torch.float32
    assert data.client(0)[1].dtype == torch.int64


def test_an_empty_person_needs_no_shape_and_keys_need_no_order():
    pairs = {1: (torch.zeros(0), torch.zeros(0)), "x": (torch.ones(2, 3), torch.zeros(2))}
    data = ClientData.from_pairs(pairs)
    assert data.sizes.tolist() == [0, 2]
    assert data.features.shape == (2, 3)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(torch.zeros(2, 1),)], r"clients\[0\] is a .*, not a pair"),
        ([torch.zeros(2, 1)], r"clients\[0\] is a .*, not a pair"),
        (
            [(np.array(["a", "b"]), np.zeros(2))],
            r"features of clients\[0\] are no array of numbers",
        ),
        ([([[1.0], [1.0, 2.0]], [0, 1])], r"features of clients\[0\] are no array of numbers"),
        ([(np.zeros((2, 1)), np.array([None, 1]))], "targets of .* are no array of numbers"),
        ([(torch.tensor(1.0), torch.zeros(1))], "one row a sample"),
        ([({"a": torch.zeros(2, 1), "b": torch.zeros(3)}, torch.zeros(2))], "3 rows of features"),
        (
            [(torch.zeros(1, 2), torch.zeros(1)), ({"a": torch.zeros(1, 2)}, torch.zeros(1))],
            r"clients\[1\] has .*make them alike",
        ),
        (
            [(torch.zeros(1, 2), torch.zeros(1)), (torch.zeros(1, 2).long(), torch.zeros(1))],
            r"clients\[1\] has features of torch.int64",
        ),
    ],
)
def test_pairs_that_are_none_are_refused_in_one_line(pairs, message):
    with pytest.raises(InputError, match=message) as caught:
        ClientData.from_pairs(pairs)
    assert "\n" not in str(caught.value)


def test_fractions_come_as_float32_whole_numbers_as_int64_masks_stay_and_labels_count():
    x = {
        "half": torch.ones(3, 2, dtype=torch.float16),
        "double": torch.ones(3, dtype=torch.float64),
        "byte": torch.ones(3, 4, dtype=torch.uint8),
        "short": np.ones((3, 1), np.uint16),
        "mask": torch.ones(3, 2, dtype=torch.bool),
        "wire": np.ones((3, 2), ">f4"),
        "reversed": np.arange(6.0).reshape(3, 2)[::-1],
    }
    data = ClientData.from_pairs([(x, torch.tensor([True, False, True]))])
    expected = {
        "half": torch.float32, "double": torch.float32, "byte": torch.int64, "short": torch.int64,
        "mask": torch.bool, "wire": torch.float32, "reversed": torch.float32,
    }  # fmt: skip
    for features, targets in (data.client(0), data.take(torch.tensor([[0, ~1]]), padded=True)):
        assert {name: values.dtype for name, values in features.items()} == expected
        assert targets.dtype == torch.int64
    assert targets.tolist() == [[1, 0]]
    assert features["reversed"].tolist() == [[[4, 5], [2, 3]]]


@pytest.mark.parametrize("kind", ["uint16", "uint32", "uint64"])
def test_unsigned_numbers_of_every_width_are_read_and_trained_on(kind):
    most = np.iinfo(kind).max // 2 + 1 if kind != "uint64" else 2**62  # beyond the signed type
    numbers = np.array([0, most, 1, 2], dtype=kind)
    data = ClientData.from_arrays(numbers, numbers, [0, 1, 0, 1])
    for own in (*data.client(1), *data.take(torch.tensor([2, 3]))):
        assert own.tolist() == [most, 2]
    labels = (np.arange(40) % 3).astype(kind)
    x = np.eye(3, dtype="f4")[labels]
    result = dpfedls.train(
        torch.nn.Linear(3, 3), ClientData.from_arrays(x, labels, np.arange(40) % 20),
        plan=plan(noise_multiplier=0, clip_norm=5.0), local=local(), test=(x, labels),
        engine="looped", device=torch.device("cpu"),  # as a string would do
    )  # fmt: skip
    assert result.loss < result.history[0].loss


def test_complex_numbers_are_refused_by_name():
    with pytest.raises(InputError, match=r"features of the data .*they are complex: give real and"):
        ClientData.from_arrays(np.ones((2, 1), "c8"), np.zeros(2), [0, 1])


# ---- arrays by user


@pytest.mark.parametrize(
    "users",
    [
        np.array([7, -2, 7, 900, -2, 7]),
        ["bo", "al", "bo", "cy", "al", "bo"],
        np.array(["bo", "al", "bo", "cy", "al", "bo"]),
        torch.tensor([1, 0, 1, 2, 0, 1]),
        [(1, "b"), (1, "a"), (1, "b"), (2, "a"), (1, "a"), (1, "b")],
        np.array([1.5, 0.5, 1.5, 2.5, 0.5, 1.5]),
    ],
)
def test_rows_go_to_their_users_in_the_order_of_labels_and_of_rows(users):
    x, y = torch.arange(6.0), torch.arange(6)
    data = ClientData.from_arrays(x, y, users)
    assert shares(data) == [[1, 4], [0, 2, 5], [3]]
    assert data.features.data_ptr() == x.data_ptr()
    assert data.take(torch.from_numpy(data.starts))[0].tolist() == [1, 0, 3]
    assert [data.rows(j).tolist() for j in range(3)] == [[1, 4], [0, 2, 5], [3]]


def test_rows_that_lie_grouped_need_no_order():
    data = ClientData.from_arrays(np.arange(5.0), np.arange(5), ["b", "b", "a", "c", "c"])
    assert data.order is None
    assert shares(data) == [[2], [0, 1], [3, 4]]


def test_labels_of_several_kinds_stay_apart():
    data = ClientData.from_arrays(np.arange(4.0), np.arange(4), [1, "1", 1, "1"])
    assert shares(data) == [[0, 2], [1, 3]]


def test_a_mapped_file_stays_mapped(tmp_path):
    shape = (2000, 50)
    np.memmap(tmp_path / "x", np.float32, "w+", shape=shape)[:] = np.arange(2000)[:, None]
    x = np.memmap(tmp_path / "x", np.float32, "r", shape=shape)
    tracemalloc.start()
    data = ClientData.from_arrays({"x": x}, np.zeros(2000), np.arange(2000) % 7)
    data = data.to(torch.device("cpu"))
    allocated = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert data.features["x"].data_ptr() == x.ctypes.data
    assert allocated < x.nbytes / 2
    assert data.client(3)[0]["x"][:, 0].tolist() == list(range(3, 2000, 7))


def test_people_that_come_one_by_one_take_the_memory_of_one_copy():
    """As the kernel counts it: 1.9 copies here; all held and then joined they take 2.8.

    In a process of its own: what other tests have left behind in the allocator counts too.
    """
    done = subprocess.run([sys.executable, "-c", _COPIES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2.2


_COPIES = """
from pathlib import Path
import numpy as np
from dpfedls import ClientData

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))

people, each = 20_000, 500
Path("/proc/self/clear_refs").write_text("5")  # the highest resident size begins anew
before = memory("VmRSS")
pairs = ((np.ones((1, each), np.float32), np.zeros(1, np.int64)) for _ in range(people))
data = ClientData.from_pairs(pairs)
assert data.features.sum() == people * each
print((memory("VmHWM") - before) / (people * each * 4))
"""


def test_blocks_of_people_are_put_together_as_one(monkeypatch):
    rng = np.random.default_rng(0)
    sizes = [2, 0, 3, 1, 0, 4, 1]
    dtypes = [np.int8, np.int8, np.int64, np.int16, np.int8, np.int8, np.int32]
    x = [rng.integers(-9, 9, (n, 2)).astype(kind) for n, kind in zip(sizes, dtypes, strict=True)]
    pairs = [({"x": own}, np.zeros(len(own), np.int64)) for own in x]
    whole = ClientData.from_pairs(pairs)
    monkeypatch.setattr(stacking, "_BLOCK", 2)
    data = ClientData.from_pairs(pairs)
    assert data.sizes.tolist() == sizes
    assert data.features["x"].dtype == whole.features["x"].dtype == torch.int64
    assert data.features["x"].tolist() == whole.features["x"].tolist() == np.concatenate(x).tolist()


@pytest.mark.parametrize("label", [int, "u{}".format])
def test_a_hundred_thousand_people_take_little_beside_their_data(label):
    """Less than a kilobyte each (10 samples of 4 numbers are 160 bytes); tracemalloc sees NumPy."""
    count = 100_000
    numbers = np.random.default_rng(0).permutation(np.repeat(np.arange(count), 10))
    users = np.array([label(n) for n in range(count)])[numbers]
    x, y = np.zeros((len(users), 4), np.float32), np.zeros(len(users), np.int64)
    tracemalloc.start()
    data = ClientData.from_arrays(x, y, users, most_samples=8)
    allocated = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert data.num_clients == count
    assert (data.sizes == 8).all()
    assert allocated < 1000 * count


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ([0, 1], "2 users for 3 samples"),
        ([0, None, 1], "no label at row 1"),
        (np.array([0.0, 1.0, np.nan]), "no label at row 2"),
        (np.zeros((3, 2)), "one label for every sample"),
        ([[0], [1], [0]], "cannot be hashed"),
    ],
)
def test_samples_without_one_owner_are_refused(users, message):
    with pytest.raises(InputError, match=message):
        ClientData.from_arrays(np.zeros((3, 1)), np.zeros(3), users)


def test_a_row_in_two_hands_is_refused():
    starts, sizes = np.array([0, 2]), np.array([2, 2])
    x, y = torch.zeros(5, 1), torch.zeros(5)
    ClientData(x, y, starts, sizes, np.array([4, 3, 2, 0]))
    for order in ([4, 3, 4, 0], [4, 3, 5, 0], [4, 3, -1, 0], [4, 3, 2]):
        with pytest.raises(InputError):
            ClientData(x, y, starts, sizes, np.array(order))


def test_what_each_client_is_shown_is_its_own_with_an_order_as_without():
    """The rows of a schedule, taken, are the same samples whether people's rows were moved."""
    rng = np.random.default_rng(0)
    users, x = rng.integers(0, 9, 100), rng.standard_normal((100, 3), dtype=np.float32)
    data = ClientData.from_arrays(x, users, users)
    by_user = np.argsort(users, kind="stable")
    moved = ClientData(
        torch.from_numpy(x[by_user]), torch.from_numpy(users[by_user]), data.starts, data.sizes
    )
    clients = np.array([3, 0, 8])
    _, groups = schedule(LocalSGD(epochs=2, batch_size=4), data, clients, key=5)
    for rows in map(torch.from_numpy, groups):
        features, targets = data.take(rows, padded=True)
        assert torch.equal(features, moved.take(rows, padded=True)[0])
        owners = {int(t.unique().item()) for t in targets}  # one a client: nobody sees another's
        assert owners <= set(clients.tolist())


def test_a_data_loader_is_nobodys_data_and_refused():
    """Its batches would be people: (features, targets) pairs, one after the other."""
    loader = DataLoader(TensorDataset(torch.zeros(40, 3), torch.zeros(40).long()), batch_size=2)
    with pytest.raises(InputError, match="clients is a DataLoader, which does not say whose"):
        dpfedls.train(torch.nn.Linear(3, 2), loader, plan=plan())


# ---- how many samples of one person count


def test_at_most_so_many_samples_count_and_the_choice_is_each_persons_own():
    """Who else is there, and under which number a person goes, has no part in the choice."""
    users = np.repeat(["al", "bo", "cy", "di"], [3, 10, 10, 1])
    x = np.arange(24.0)
    data = ClientData.from_arrays(x, x, users, most_samples=4, seed=1)
    assert data.most_samples == 4
    assert data.sizes.tolist() == [3, 4, 4, 1]
    mine = data.client(2)[0]
    assert set(mine.tolist()) <= set(range(13, 23))
    assert mine.tolist() == sorted(set(mine.tolist()))
    others_gone = ClientData.from_arrays(x[13:], x[13:], users[13:], most_samples=4, seed=1)
    assert torch.equal(others_gone.client(0)[0], mine)
    again = ClientData.from_arrays(x, x, users, most_samples=4, seed=1)
    assert torch.equal(again.client(2)[0], mine)
    assert shares(data)[1] != [value - 10 for value in shares(data)[2]]


def test_the_choice_is_uniform():
    """20,000 people choose 2 of 5: each place 8,000 times, variance 20,000 · .4 · .6 = 4,800.

    Five standard deviations on five counts raise a false alarm less than once in 300,000 times.
    """
    users = np.repeat(np.arange(20_000), 5)
    place = np.tile(np.arange(5), 20_000)
    data = ClientData.from_arrays(place, place, users, most_samples=2)
    counts = np.bincount(data.take(torch.arange(40_000))[0], minlength=5)
    assert (np.abs(counts - 8000) < 5 * 4800**0.5).all()
    pairs = {tuple(p) for p in data.take(torch.arange(40_000))[0].reshape(-1, 2).tolist()}
    assert len(pairs) == 10


@pytest.mark.parametrize("most", [0, -1, 2.5, True, "3"])
def test_a_bound_that_is_none_is_refused(most):
    with pytest.raises(InputError, match="most_samples must be a whole number"):
        ClientData.from_arrays(np.zeros(2), np.zeros(2), [0, 1], most_samples=most)


# ---- frames


def frame(**columns):
    pandas = pytest.importorskip("pandas")
    usual = {"user_id": ["b", "a", "b"], "age": [30, 40, 50], "ok": [True, False, True]}
    return pandas.DataFrame(usual | {"y": [0, 1, 1]} | columns)


def test_a_frame_gives_its_numeric_columns_by_user():
    data = ClientData.from_frame(frame(), most_samples=5)
    assert shares(data) == [[[40, 0]], [[30, 1], [50, 1]]]
    assert data.targets.dtype == torch.int64
    assert data.features.dtype == torch.float32
    assert data.most_samples == 5
    named = ClientData.from_frame(frame(t=[0.5, 1, 2]), target="t", features="age")
    assert named.targets.dtype == torch.float32
    assert named.features.shape == (3, 1)


def test_a_frames_nullable_columns_are_numbers_too():
    pandas = pytest.importorskip("pandas")
    whole = frame(age=pandas.array([1, 2, 3], dtype="Int64"))
    assert shares(ClientData.from_frame(whole, features=["age"])) == [[[2]], [[1], [3]]]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"town": ["x", "y", "z"]}, {}, "column 'town' holds .*get_dummies"),
        ({"age": [1.0, None, 2.0]}, {}, "column 'age' has missing values, the first at row 1"),
        ({"user_id": ["a", None, "b"]}, {}, "column 'user_id' has missing values"),
        ({"y": ["no", "yes", "no"]}, {}, "column 'y' holds .*codes"),
        ({}, {"user": "userid"}, "unknown column 'userid'; did you mean 'user_id'"),
        ({}, {"features": ["ages"]}, "did you mean 'age'"),
        ({}, {"features": ["y"]}, "must not read either"),
        ({}, {"features": ["user_id", "age"]}, "must not read either"),
    ],
)
def test_columns_that_no_model_can_read_are_refused_by_name(columns, options, message):
    with pytest.raises(InputError, match=message):
        ClientData.from_frame(frame(**columns), **options)


def test_a_name_that_two_columns_have_is_refused():
    pandas = pytest.importorskip("pandas")
    twice = pandas.concat([frame(), frame()[["age"]]], axis=1)
    with pytest.raises(InputError, match=r"there are 2 columns named 'age', .*rename them"):
        ClientData.from_frame(twice)
    others = [name for name in frame().columns if name not in ("user_id", "y", "age")]
    assert ClientData.from_frame(twice, features=others).num_clients == 2


# ---- data sets


class Items(Dataset):
    def __init__(self, items):
        self.items = items
        self.seen = []

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        self.seen.append(i)
        return self.items[i]


class Columns:
    """The part of a Hugging Face data set's public interface that is asked for."""

    def __init__(self, columns, kind=None):
        self.columns, self.kind, self.column_names = columns, kind, list(columns)

    def with_format(self, kind):
        return Columns(self.columns, kind)

    def __getitem__(self, name):
        assert self.kind == "numpy"
        return np.array(self.columns[name])


def test_a_data_set_of_tuples_of_dicts_or_columns_is_grouped_by_user():
    x, y, users = torch.arange(8.0).reshape(4, 2), [0, 1, 0, 1], ["b", "a", "b", "c"]
    tuples = Items(list(zip(x, y, users, strict=True)))
    dicts = Items([{"x": a, "y": b, "user_id": c} for a, b, c in zip(x, y, users, strict=True)])
    columns = Columns({"x": x.numpy(), "y": y, "user_id": users})
    for dataset in (tuples, dicts, columns):
        data = ClientData.from_dataset(dataset)
        assert shares(data) == [[[2, 3]], [[0, 1], [4, 5]], [[6, 7]]]
        assert data.client(1)[1].tolist() == [0, 0]


def test_several_columns_of_a_data_set_are_a_dict():
    columns = Columns(
        {"tokens": [[1, 2], [3, 4]], "mask": [[True, True], [True, False]], "who": [5, 5]}
        | {"label": [1, 0]}
    )
    data = ClientData.from_dataset(columns, user="who", target="label")
    features, targets = data.client(0)
    assert features["tokens"].tolist() == [[1, 2], [3, 4]]
    assert features["mask"].dtype == torch.bool
    assert targets.tolist() == [1, 0]
    one = ClientData.from_dataset(columns, user="who", target="label", features="tokens")
    assert one.features.shape == (2, 2)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Items([(torch.zeros(1), 0)]), "neither dicts nor"),
        (Items([]), "holds no items"),
        (Items([(torch.zeros(1), 0, 1), (torch.zeros(2), 0, 1)]), "cannot be stacked"),
        (Items([{"x": torch.zeros(1), "y": 0, "person": 1}]), "unknown column 'user_id'"),
        (iter([]), "has no items by number"),
    ],
)
def test_a_data_set_without_owners_or_shapes_is_refused(dataset, message):
    with pytest.raises(InputError, match=message):
        ClientData.from_dataset(dataset)


# ---- people loaded when they train


def lazy_people(sizes=(3, 0, 5, 2)):
    made = [torch.arange(float(n)).reshape(n, 1) + 10 * j for j, n in enumerate(sizes)]
    return [Items([({"x": row}, j) for row in x]) for j, x in enumerate(made)]


def test_lazy_people_are_loaded_when_they_are_asked_for_and_forgotten():
    datasets = lazy_people()
    data = LazyClients(datasets, kept=1)
    assert (data.num_clients, data.sizes.tolist()) == (4, [3, 0, 5, 2])
    assert not any(own.seen for own in datasets)
    features, targets = data.client(2)
    assert features["x"].flatten().tolist() == [20, 21, 22, 23, 24]
    assert targets.tolist() == [2] * 5
    assert [len(own.seen) for own in datasets] == [0, 0, 5, 0]
    data.client(2)
    assert len(datasets[2].seen) == 5
    data.client(0), data.client(2)
    assert len(datasets[2].seen) == 10
    assert len(data.client(1)[1]) == 0


def test_lazy_people_give_the_rows_that_loaded_ones_give():
    datasets = lazy_people()
    lazy = people(dict(enumerate(datasets)))
    pairs = [
        lazy.client(j) if lazy.sizes[j] else (torch.zeros(0), torch.zeros(0)) for j in range(4)
    ]
    data = ClientData.from_pairs(pairs)
    rows = torch.tensor([[9, 3, ~3], [0, 7, ~0]])
    for one, other in zip(lazy.take(rows, padded=True), data.take(rows, padded=True), strict=True):
        torch.testing.assert_close(one, other)
    assert lazy.to(torch.device("cpu")).take(rows[:, 0])[1].tolist() == [3, 0]


def test_whoever_trains_at_once_is_loaded_once():
    datasets = lazy_people()
    data = LazyClients(datasets, kept=1)
    for _ in range(3):
        data.take(torch.tensor([[0], [4], [8]]))
    assert [len(own.seen) for own in datasets] == [3, 0, 5, 2]


def test_the_bound_holds_for_lazy_people_too():
    data = LazyClients(lazy_people(), most_samples=2, seed=3)
    assert data.sizes.tolist() == [2, 0, 2, 2]
    assert data.most_samples == 2
    assert set(data.client(2)[0]["x"].flatten().tolist()) < set(range(20, 25))
    assert torch.equal(data.client(2)[0]["x"], LazyClients(lazy_people(), 2, 3).client(2)[0]["x"])


def test_which_samples_of_lazy_people_count_does_not_depend_on_who_else_is_there():
    """By label in a dict; in a list by the place, which whoever leaves leaves empty."""
    named = dict(zip("edcba", lazy_people((9,) * 5), strict=True))

    def kept(datasets):
        data = LazyClients(datasets, most_samples=3, seed=1)
        own = [data.client(j) for j in np.flatnonzero(data.sizes)]
        return {int(y[0]): (x["x"].flatten() % 10).tolist() for x, y in own}

    everybody, listed = kept(named), kept(list(named.values()))
    assert len({tuple(rows) for rows in everybody.values()}) > 1
    for gone in named:
        without = {label: own for label, own in named.items() if label != gone}
        emptied = [own if label != gone else Items([]) for label, own in named.items()]
        assert kept(without).items() < everybody.items()
        assert kept(emptied).items() < listed.items()


def test_lazy_people_of_unlike_shapes_are_told_apart():
    data = LazyClients([Items([(torch.zeros(n), 0)]) for n in (2, 3)])
    with pytest.raises(InputError, match=r"clients \[0, 1\] cannot be stacked.*shape \(3,\)"):
        data.take(torch.tensor([0, 1]))


# ---- whatever is given


def test_people_takes_what_says_whose_sample_is_whose():
    pair = (torch.zeros(2, 1), torch.zeros(2))
    data = ClientData.from_pairs([pair])
    assert people(data) is data
    for clients in ([pair], {"a": pair}, (pair,), iter([pair])):
        assert isinstance(people(clients), ClientData)
    assert isinstance(people([Items([(torch.zeros(1), 0)])]), LazyClients)


def test_people_in_tensor_data_sets_or_an_array_of_objects_are_in_memory_already():
    """Loading sample by sample would take many times as long as the training."""
    pairs = [(torch.rand(n, 2), torch.zeros(n).long()) for n in (2, 0, 3)]
    flat = np.empty(3, dtype=object)
    flat[:] = [(x.numpy(), y.numpy()) for x, y in pairs]
    wide = np.empty((3, 2), dtype=object)
    wide[:, 0], wide[:, 1] = ([own[k].numpy() for own in pairs] for k in (0, 1))
    for clients in ([TensorDataset(*own) for own in pairs], flat, wide):
        data = people(clients)
        assert isinstance(data, ClientData)
        assert data.sizes.tolist() == [2, 0, 3]
        assert torch.equal(data.client(2)[0], pairs[2][0])
    three = TensorDataset(torch.zeros(2, 1), torch.zeros(2), torch.zeros(2))
    assert isinstance(people([three]), LazyClients)  # and refused when it is loaded


@pytest.mark.parametrize(
    "clients",
    [
        torch.zeros(2, 1), np.zeros((2, 1)), "data.csv", 3, None, TensorDataset(torch.zeros(2)),
        Columns({"x": [1]}),
    ],
)  # fmt: skip
def test_people_says_what_is_accepted(clients):
    with pytest.raises(InputError, match=r"from_arrays\(x, y, users\)") as caught:
        people(clients)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("clients", [[], {}])
def test_nobody_is_refused(clients):
    with pytest.raises(InputError, match="clients is empty"):
        people(clients)


# ---- and trained on


def trained(clients, model=None, **options):
    model = model or start_model()
    options = {"plan": plan(num_clients=20), "local": local()} | options
    result = dpfedls.train(model=model, clients=clients, **options)
    return Layout.of(result.model).read(result.model)


def test_the_same_people_give_the_same_model_however_their_data_lies():
    """Also where rows are mixed up, as bytes, in wide floats, or loaded one person at a time."""
    pairs = linear_clients()
    expected = trained(pairs)
    users = np.repeat(np.arange(20), 6)
    mixed = np.random.default_rng(0).permutation(120)
    back = mixed[np.argsort(users[mixed], kind="stable")]  # a person's rows in another order
    x, y = (torch.cat(part).numpy() for part in zip(*pairs, strict=True))
    assert torch.equal(trained([(a.numpy(), b.numpy()) for a, b in pairs]), expected)
    assert torch.equal(trained(dict(enumerate(pairs))), expected)
    torch.testing.assert_close(trained(ClientData.from_arrays(x.astype(float), y, users)), expected)
    moved = ClientData.from_arrays(x[back], y[back], users)
    assert moved.order is None
    scattered = ClientData.from_arrays(x[mixed], y[mixed], users[mixed])
    assert scattered.order is not None
    assert torch.equal(trained(scattered), trained(moved))
    wide = ClientData.from_arrays(x[mixed].astype(float), y[mixed], users[mixed])
    for options in ({}, {"local": local(epochs=None, steps=1)}):  # all of one's samples, and some
        assert torch.equal(trained(wide, **options), trained(moved, **options))
    sets = [TensorDataset(a, b) for a, b in pairs]
    assert torch.equal(trained(sets), expected)
    torch.testing.assert_close(trained(LazyClients(sets)), expected)


def test_nobody_moves_anothers_update_wherever_the_rows_lie():
    """One person's rows replaced by huge ones: without noise the sum moves by at most the norm."""
    rng = np.random.default_rng(0)
    users = rng.permutation(np.repeat(np.arange(20), 6))
    x, y = rng.standard_normal((120, 4), dtype=np.float32), rng.integers(0, 3, 120)
    poisoned = np.where((users == 7)[:, None], np.float32(1e3), x)
    once = plan(noise_multiplier=0, rounds=1, sampler=dpfedls.PoissonSampling(rate=1.0))
    moves = [trained(ClientData.from_arrays(v, y, users), plan=once) for v in (x, poisoned)]
    assert 0 < float((moves[0] - moves[1]).norm()) * 20 <= 2 * 0.5 * (1 + 1e-5)


def test_members_that_an_attack_looks_for_are_samples_that_count():
    x, users = torch.arange(40.0), np.arange(40) % 4
    data = ClientData.from_arrays(x, torch.zeros(40), users, most_samples=3)
    task = Task(data, start_model(), test=(x, torch.zeros(40)))
    (members, _), _ = sides(task, SeededStreams(0))
    counted = torch.cat([data.client(j)[0] for j in range(4)])
    assert sorted(members.tolist()) == sorted(counted.tolist())


def test_a_transformer_on_tokens_with_tied_weights_trains_and_stays_tied():
    class Reader(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(11, 8)
            self.block = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.output = torch.nn.Linear(8, 11, bias=False)
            self.output.weight = self.embedding.weight

        def forward(self, tokens):
            return self.output(self.block(self.embedding(tokens))[:, -1])

    torch.manual_seed(0)
    tokens, users = torch.randint(11, (120, 6)), np.arange(120) % 20
    clients = ClientData.from_arrays(tokens.to(torch.uint8), tokens[:, -1], users)
    result = dpfedls.train(
        model=Reader(), clients=clients, plan=plan(noise_multiplier=0, rounds=3, clip_norm=5.0),
        local=local(), test=(tokens.numpy(), tokens[:, -1].numpy()),
    )  # fmt: skip
    assert result.model.output.weight is result.model.embedding.weight
    assert result.loss < result.history[0].loss


def test_printing_people_tells_nobodys_values():
    data = ClientData.from_pairs([(torch.full((3, 2), 123.25), torch.full((3,), 77))] * 4)
    assert repr(data) == (
        "ClientData(4 people, features of torch.float32 and shape (2,) a sample and targets of "
        "torch.int64 and shape ())"
    )
