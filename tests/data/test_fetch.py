"""Fetching: verified, atomic, resumable, mirrored, and clear when a file cannot be had."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from data import fetch
from data.fetch import DataError, Entry, Files, blob_id, ensure, manifest

CONTENT = bytes(range(256)) * 2000
KEY = "dataset/Toy/test.json"


def git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob " + str(len(content)).encode() + b"\x00" + content).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `content`; drops the connection after each length in `drops`; ignores ranges if told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.drops, self.ranges, self.seen = CONTENT, [], True, []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.seen.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        if self.path != "/file":
            return self.send_error(404)
        if start >= len(self.server.content):
            return self.send_error(416)
        body = self.server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.drops.pop(0)] if self.server.drops else body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def entry(monkeypatch, server) -> Entry:
    return use(monkeypatch, f"http://127.0.0.1:{server.server_address[1]}/file")


def use(monkeypatch, url: str, blob: str = git_blob(CONTENT)) -> Entry:
    entry = Entry(KEY, "toy", "rev1", KEY, url, blob, rows=1)
    monkeypatch.setattr(fetch, "manifest", lambda: {KEY: entry})
    return entry


def test_blob_id_is_gits(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"what is up, doc?")
    assert blob_id(tmp_path / "file") == "bd9dbf5aae1a3862dd1526723246b20206e5fc37"  # Pro Git, chapter 10.2


def test_downloads_once(entry: Entry, server: Server, tmp_path: Path) -> None:
    path = ensure(KEY, cache=tmp_path)
    assert path == tmp_path / "data" / KEY
    assert path.read_bytes() == CONTENT
    assert ensure(KEY, cache=tmp_path) == path
    assert server.seen == [None]
    assert {file.name for file in path.parent.iterdir()} == {"test.json", "test.json.lock"}


def test_goes_on_after_a_dropped_connection(entry: Entry, server: Server, tmp_path: Path) -> None:
    server.drops = [100_000]
    assert ensure(KEY, cache=tmp_path).read_bytes() == CONTENT
    assert len(server.seen) == 2
    assert 0 < int(server.seen[1].removeprefix("bytes=").rstrip("-")) <= 100_000


def test_goes_on_in_a_later_process(entry: Entry, server: Server, tmp_path: Path) -> None:
    server.drops = [50_000, 1, 1]
    with pytest.raises(DataError, match="no connection"):
        ensure(KEY, cache=tmp_path)
    assert not (tmp_path / "data" / KEY).exists()
    server.seen.clear()
    assert ensure(KEY, cache=tmp_path).read_bytes() == CONTENT
    assert server.seen[0] is not None


@pytest.mark.parametrize("ranges", [True, False])
def test_mends_a_part_that_is_wrong_or_cannot_be_continued(
    entry: Entry, server: Server, tmp_path: Path, ranges: bool
) -> None:
    server.ranges = ranges
    part = tmp_path / "data" / f"{KEY}.{entry.blob[:8]}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * len(CONTENT))
    assert ensure(KEY, cache=tmp_path).read_bytes() == CONTENT


def test_wrong_content_is_not_used(monkeypatch, server: Server, tmp_path: Path) -> None:
    entry = use(monkeypatch, f"http://127.0.0.1:{server.server_address[1]}/file", blob="0" * 40)
    with pytest.raises(DataError, match="not used") as error:
        ensure(KEY, cache=tmp_path)
    assert entry.url in str(error.value)
    assert entry.blob in str(error.value)
    assert [file.name for file in (tmp_path / "data" / KEY).parent.iterdir()] == ["test.json.lock"]


def test_damaged_cache_is_fetched_again(entry: Entry, server: Server, tmp_path: Path) -> None:
    path = ensure(KEY, cache=tmp_path)
    path.write_bytes(CONTENT[:-1])
    assert ensure(KEY, cache=tmp_path).read_bytes() == CONTENT


def test_mirror_comes_before_the_network(entry: Entry, server: Server, tmp_path: Path) -> None:
    place = tmp_path / "mirror" / KEY
    place.parent.mkdir(parents=True)
    place.write_bytes(CONTENT)
    files = Files(tmp_path / "cache", tmp_path / "mirror")
    assert files(KEY).read_bytes() == CONTENT
    assert files.used == {KEY: entry.blob}
    assert server.seen == []
    beside = Files(tmp_path / "cache2", tmp_path / "mirror" / "llm-adapters")
    beside.mirror.mkdir()
    assert beside(KEY).read_bytes() == CONTENT


def test_mirror_is_verified_too(entry: Entry, tmp_path: Path) -> None:
    place = tmp_path / "mirror" / KEY
    place.parent.mkdir(parents=True)
    place.write_bytes(CONTENT + b"\n")
    with pytest.raises(DataError, match="not used") as error:
        ensure(KEY, cache=tmp_path, mirror=tmp_path / "mirror")
    assert str(place) in str(error.value)


def test_no_network_and_no_mirror_says_what_to_do(monkeypatch, tmp_path: Path) -> None:
    entry = use(monkeypatch, "http://127.0.0.1:9/nothing")
    for offline in (False, True):
        with pytest.raises(DataError) as error:
            ensure(KEY, cache=tmp_path, offline=offline)
        text = str(error.value)
        assert KEY in text
        assert entry.url in text
        assert "DYPAM_DATA_MIRROR=" in text
        assert "runtime.data_mirror=" in text
        assert text.count("\n") == 0


def test_http_errors_are_told(monkeypatch, server: Server, tmp_path: Path) -> None:
    use(monkeypatch, f"http://127.0.0.1:{server.server_address[1]}/absent")
    with pytest.raises(DataError, match="404"):
        ensure(KEY, cache=tmp_path)
    assert len(server.seen) == 1


def test_unknown_keys_and_mirrors_are_told(entry: Entry, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.json"):
        ensure("nothing.json", cache=tmp_path)
    with pytest.raises(DataError, match="no folder"):
        ensure(KEY, cache=tmp_path, mirror=tmp_path / "absent")


def test_manifest_is_whole() -> None:
    entries = manifest()
    assert len(entries) == 22
    assert all(len(bytes.fromhex(entry.blob)) == 20 and entry.rows > 0 for entry in entries.values())
    aqua = entries["dataset/AQuA/test.json"]
    assert aqua.url == (
        "https://raw.githubusercontent.com/AGI-Edgerunners/LLM-Adapters/"
        "816657208af4db747803f87ba40a4c71383fed7a/dataset/AQuA/test.json"
    )
    assert entries["grade-school-math/train.jsonl"].url.endswith("grade_school_math/data/train.jsonl")
