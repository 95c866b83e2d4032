from __future__ import annotations

import hashlib
import http.server
import threading

import numpy as np
import pytest

from dpfedls import InputError
from dpfedls.tasks import files
from dpfedls.tasks.files import SOURCES, Source, data_file, fetch, keep, once, published_file

CONTENT = bytes(range(256)) * 20_000  # more than one part is read
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:3000] if self.path == "/broken" else CONTENT)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    """A real HTTP server on this machine."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DPFEDLS_DATA", raising=False)
    return tmp_path / "dpfedls"


def test_a_missing_file_is_fetched_once_into_the_cache(server, cache, monkeypatch, capsys):
    monkeypatch.setitem(SOURCES, "toys/ball", Source(f"{server}/ball", SHA256))
    path = data_file("toys", "ball")
    assert path == cache / "toys" / "ball"
    assert path.read_bytes() == CONTENT
    assert "downloading" in capsys.readouterr().err
    monkeypatch.setitem(SOURCES, "toys/ball", Source(f"{server}/missing", SHA256))
    assert data_file("toys", "ball") == path
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("page", "sha256", "message"),
    [
        ("ball", "0" * 64, f"its SHA-256 is {SHA256}, not 0000"),
        ("broken", SHA256, r"broke off after 3000 of 5120000 bytes"),
        ("missing", SHA256, "404"),
    ],
)
def test_what_does_not_arrive_whole_leaves_nothing(server, tmp_path, page, sha256, message):
    path = tmp_path / "toys" / "ball"
    with pytest.raises(InputError, match=message) as caught:
        fetch(Source(f"{server}/{page}", sha256), path)
    assert f"put the file at {path}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(path.parent.iterdir()) == []


def test_without_a_network_one_line_says_what_to_put_where(cache, monkeypatch, capsys):
    url = "http://127.0.0.1:1/train"  # nobody listens there
    monkeypatch.setitem(SOURCES, "mnist/train", Source(url, SHA256))
    with pytest.raises(InputError) as caught:
        data_file("mnist", "train")
    for part in (url, f"put the file at {cache / 'mnist' / 'train'}", "DPFEDLS_DATA"):
        assert part in str(caught.value)
    assert capsys.readouterr().err == ""


def test_nothing_is_fetched_into_a_folder_that_somebody_keeps(server, tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDLS_DATA", str(tmp_path))
    monkeypatch.setitem(SOURCES, "toys/ball", Source(f"{server}/ball", SHA256))
    with pytest.raises(InputError, match=rf"toys/ball is not there; .*from {server}/ball"):
        data_file("toys", "ball")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_published_nowhere(cache):
    with pytest.raises(InputError, match=r"cannot be downloaded.*set DPFEDLS_DATA"):
        data_file("svhn", "svhn_test_first5000_32x32.npz")


def test_sources_are_https_and_have_checksums():
    for key, source in SOURCES.items():
        assert source.url.startswith("https://")
        assert source.url.endswith(key.split("/")[1])
        assert len(bytes.fromhex(source.sha256)) == 32


@pytest.mark.data
def test_the_checksums_are_those_of_the_real_files(data_folder, monkeypatch):
    monkeypatch.setenv("DPFEDLS_DATA", str(data_folder))
    here = [key for key in SOURCES if (data_folder / key).is_file()]
    assert sum(key.startswith(("mnist", "shakespeare")) for key in here) == 5
    for key in here:
        published_file(*key.split("/"))


def test_another_file_under_a_published_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDLS_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"other labels")
    with pytest.raises(InputError, match="is not the published file"):
        published_file("mnist", "t10k-labels-idx1-ubyte.gz")


def test_a_cache_that_cannot_be_written_is_told_and_costs_nothing_else(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    keep(tmp_path / "file" / "weights", b"x")
    assert "cannot be kept" in caplog.text
    keep(tmp_path / "folder" / "weights", b"x")
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["weights"]


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert files.cache_folder() == tmp_path / "dpfedls"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert files.cache_folder() == tmp_path / "home" / ".cache" / "dpfedls"


def test_arrays_are_made_once_and_again_where_their_file_is_spoilt(cache, caplog):
    made = []

    def make():
        made.append({"a": np.arange(3, dtype=np.uint8)})
        return made[-1]

    path = cache / "arrays.npz"
    for _ in range(2):
        assert once(path, make)["a"].tolist() == [0, 1, 2]
    assert len(made) == 1
    for spoilt in (b"", b"no archive", path.read_bytes()[:-30]):
        path.write_bytes(spoilt)
        assert once(path, make)["a"].tolist() == [0, 1, 2]
        assert once(path, make).keys() == {"a"}
    assert len(made) == 4
    assert caplog.text.count("is made again") == 3


def test_arrays_that_cannot_be_kept_are_still_given(cache, caplog):
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("a file where the folder should be")
    assert once(cache / "arrays.npz", lambda: {"a": np.ones(2)})["a"].tolist() == [1, 1]
    assert "cannot be kept" in caplog.text
