"""Writing: the old content or the new one, never a part; and what a full disk leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from dypam import files
from tests.state.support import ROOT, leftovers

FULL_DISK = (
    "import resource, sys; from pathlib import Path; from dypam import files\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    "path = Path(sys.argv[1])\n"
    "try: {call}\n"
    "except files.FileError as error: print(error)\n"
)


def on_a_full_disk(call: str, path: Path) -> str:
    """Run `call` where no file can grow beyond 4,096 bytes; return the error's sentence."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK.format(call=call), str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    files.write_json(path, {"n": 1})
    message = on_a_full_disk("files.write_json(path, ['x' * 9000])", path)
    assert message.startswith(f"{path} cannot be written (File too large): free disk space")
    assert message.count("\n") == 1
    assert files.read_json(path) == {"n": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_leaves_appended_files_as_long_as_before(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    files.append_lines(path, [{"id": 1, "text": "y" * 3000}])
    before = path.read_bytes()
    message = on_a_full_disk("files.append_lines(path, [{'id': 2, 'text': 'z' * 9000}])", path)
    assert "free disk space" in message
    assert path.read_bytes() == before


def test_path_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        files.FileError, match=r"file/under\.json cannot be written \(.*\): check that"
    ) as error:
        files.write_json(tmp_path / "file" / "under.json", 1)
    assert "\n" not in str(error.value)


def test_written_with_the_usual_permissions_and_new_folders(tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "a" / "b.txt", "text")
    files.write_atomic(tmp_path / "a" / "b.txt", b"bytes")
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"bytes"
    assert (tmp_path / "a" / "b.txt").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_json_is_stable_readable_and_valid(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    value = {
        "b": float("nan"),
        "a": [np.float32(0.5), np.int64(3)],
        "p": Path("x/y"),
        "t": (1, "ü"),
        5: -np.inf,
    }
    files.write_json(path, value)
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {
        "b": None,
        "a": [0.5, 3],
        "p": "x/y",
        "t": [1, "ü"],
        "5": None,
    }
    first = path.read_bytes()
    files.write_json(path, files.read_json(path))
    assert path.read_bytes() == first
    assert "ü" in path.read_text()


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b'{"a": 1}{', b"\xff\xfe", b"\0" * 10])
def test_torn_json_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(files.FileError) as error:
        files.read_json(path)
    assert str(error.value).startswith(f"{path} is damaged (")
    assert "\n" not in str(error.value)


def test_missing_json_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.read_json(tmp_path / "none.json")


@pytest.mark.parametrize("tail", [b"", b'{"id": 3', b"\xff", b'{"id"'])
def test_torn_last_line_is_cut_before_the_next(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    files.append_lines(path, [{"id": 1}, {"id": 2, "text": "one\ntwo\u2028three\x85"}])
    with open(path, "ab") as out:
        out.write(tail)
    assert [row["id"] for row in files.read_lines(path)] == [1, 2]
    files.append_lines(path, [{"id": 3}])
    assert [row["id"] for row in files.read_lines(path)] == [1, 2, 3]
    assert files.read_lines(path)[1]["text"] == "one\ntwo\u2028three\x85"


def test_torn_only_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"id": 1')
    assert files.read_lines(path) == []
    files.append_lines(path, [{"id": 1}])
    assert path.read_bytes() == b'{"id": 1}\n'


@pytest.mark.parametrize("damage", [b"garbage\n", b"[1]\n", b"\xff\xff\n", b"\n", b'{"id": 1}x\n'])
def test_rows_end_where_the_file_is_damaged(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"id": 0}\n' + damage + b'{"id": 2}\n')
    assert files.read_lines(path) == [{"id": 0}]


def test_no_rows_yet(tmp_path: Path) -> None:
    assert files.read_lines(tmp_path / "none.jsonl") == []


def directory(path: Path, **content: str) -> Path:
    path.mkdir(parents=True)
    for name, text in content.items():
        (path / name).write_text(text)
    return path


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_replace_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool, there: bool
) -> None:
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    final = tmp_path / "adapter"
    if there:
        directory(final, old="1", both="1")
        directory(tmp_path / ".old-adapter", older="0")
    files.replace_directory(directory(tmp_path / "new", both="2"), final)
    assert {path.name: path.read_text() for path in final.iterdir()} == {"both": "2"}
    files.tidy(tmp_path, nullcontext)
    assert list(tmp_path.iterdir()) == [final]


def test_swap_works_on_this_system(tmp_path: Path) -> None:
    one, two = directory(tmp_path / "one", a="1"), directory(tmp_path / "two", b="2")
    if not files._exchange(one, two):
        pytest.skip("this file system cannot swap two directories")
    assert (one / "b").exists()
    assert (two / "a").exists()


def test_staged_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    final = directory(tmp_path / "adapter", weights="old")

    def fail() -> None:
        with files.staged_directory(final) as tmp:
            (tmp / "weights").write_text("half")
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert (final / "weights").read_text() == "old"
    with files.staged_directory(final) as tmp:
        (tmp / "deep").mkdir()
        (tmp / "deep" / "weights").write_text("new")
        assert (final / "weights").read_text() == "old"
    assert files.files_under(final) == [Path("deep/weights")]
    assert list(tmp_path.iterdir()) == [final]


def test_tidy_without_a_guard_spares_the_living_and_other_hosts(tmp_path: Path) -> None:
    mine = files.temporary(tmp_path / "mine.json")
    mine.write_text("")
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead = tmp_path / mine.name.replace(f"-{os.getpid()}@", f"-{gone.pid}@")
    elsewhere = tmp_path / dead.name.replace("@", "@elsewhere-")
    for path in (dead, elsewhere):
        path.write_text("")
    files.tidy(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, elsewhere])


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert files.sha256_file(tmp_path / "abc").startswith("ba7816bf8f01cfea")


def test_remove_directory(tmp_path: Path) -> None:
    files.remove_directory(directory(tmp_path / "some", a="1"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("mount") is None or os.geteuid() != 0, reason="needs to mount a small disk")
def test_really_full_disk(tmp_path: Path) -> None:
    """A checkpoint, a record and predictions on a disk of 64 KiB that fills up: all whole or absent."""
    disk = directory(tmp_path / "disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("not allowed to mount")
    try:
        files.write_json(disk / "record.json", {"a": 1})
        (disk / "filling").write_bytes(b"x" * 40000)
        with pytest.raises(files.FileError, match=r"No space left on device.*free disk space"):
            files.write_json(disk / "record.json", {"a": "x" * 40000})
        files.append_lines(disk / "rows.jsonl", [{"id": 1}])
        with pytest.raises(files.FileError, match="free disk space"):
            files.append_lines(disk / "rows.jsonl", [{"id": 2, "text": "x" * 40000}])
        with (
            pytest.raises(files.FileError, match="free disk space"),
            files.staged_directory(disk / "adapter", None) as tmp,
        ):
            (tmp / "weights").write_bytes(b"x" * 40000)
        assert files.read_json(disk / "record.json") == {"a": 1}
        assert files.read_lines(disk / "rows.jsonl") == [{"id": 1}]
        assert leftovers(disk) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)
