"""Fetch the files of `manifest.yaml`: from the cache, a local mirror or the network, never unverified.

A file is used only when git's blob id of its content is the manifest's.  A mirror is a copy of LLM-Adapters'
tree (same relative paths); files of another source lie in a folder of its name inside that tree or beside it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache as memoize
from pathlib import Path

import requests
import yaml
from tqdm import tqdm

ATTEMPTS = 3
TIMEOUT = (10, 60)
CHUNK = 1 << 13


class DataError(ValueError):
    """Data that cannot be had or is not what it should be: one sentence that says what to do."""


@dataclass(frozen=True)
class Entry:
    """One file of the manifest: `key` locally, `url` remotely, git's `blob` id and number of `rows`."""

    key: str
    source: str
    revision: str
    path: str
    url: str
    blob: str
    rows: int


@memoize
def manifest() -> dict[str, Entry]:
    """Return every file of `data/manifest.yaml` by its key."""
    whole = yaml.safe_load(Path(__file__).with_name("manifest.yaml").read_text())
    entries = {}
    for key, given in whole["files"].items():
        source = whole["sources"][given["source"]]
        path = given.get("path", key)
        url = source["url"].format(revision=source["revision"], path=path)
        entries[key] = Entry(
            key, given["source"], source["revision"], path, url, given["blob"], given["rows"]
        )
    return entries


def blob_id(path: Path) -> str:
    """Return git's id of a file's content: SHA-1 of `blob <bytes>`, a NUL byte and the content, in hex."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


class Files:
    """Where files come from; called with a key it returns a verified path and notes the blob in `used`.

    Attributes:
        cache: folder of verified copies.
        mirror: local copy of the sources, asked before the network.
        offline: never use the network.
        used: blob id by key of every file handed out, for the record of a run.
    """

    # No dataclass: Hydra's `instantiate` would turn an instance among its arguments into a DictConfig.
    def __init__(self, cache: Path | str, mirror: Path | str | None = None, offline: bool = False) -> None:
        self.cache = Path(cache)
        self.mirror = Path(mirror) if mirror else None
        self.offline = offline
        self.used: dict[str, str] = {}

    def __call__(self, key: str) -> Path:
        """Return the verified local path of the manifest's file `key`; raise `DataError`."""
        path = ensure(key, cache=self.cache, mirror=self.mirror, offline=self.offline)
        self.used[key] = manifest()[key].blob
        return path


def ensure(key: str, *, cache: Path, mirror: Path | str | None = None, offline: bool = False) -> Path:
    """Return the path of a verified copy of the manifest's file `key`, fetching it if the cache has none.

    Args:
        key: a key of `manifest.yaml`.
        cache: folder for copies; a file lands in `cache/data/<key>` by one rename.
        mirror: local copy of the sources (see the module), used before the network.
        offline: do not try the network.

    Raises:
        DataError: the key is unknown, the file cannot be had, or its content is not the manifest's.
    """
    entry = manifest().get(key)
    if entry is None:
        raise DataError(
            f"No file {key!r} in data/manifest.yaml; add it there, or use a key that fetch.py --list shows."
        )
    target = Path(cache) / "data" / key
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(target.name + ".lock")):
        if target.exists() and blob_id(target) == entry.blob:
            return target
        part = target.with_name(f"{target.name}.{entry.blob[:8]}.part")
        local = _in_mirror(entry, Path(mirror)) if mirror else None
        if local is not None:
            shutil.copyfile(local, part)
        else:
            _download(entry, part, mirror, offline)
        _accept(entry, part, local or entry.url, target)
    return target


def _accept(entry: Entry, part: Path, origin: Path | str, target: Path) -> None:
    found = blob_id(part)
    if found != entry.blob:
        part.unlink()
        raise DataError(
            f"{origin} has git blob id {found} where data/manifest.yaml has {entry.blob}, so it is not used; "
            f"give the file of revision {entry.revision}."
        )
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(target)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _in_mirror(entry: Entry, mirror: Path) -> Path | None:
    if not mirror.is_dir():
        raise DataError(
            f"The data mirror {mirror} is no folder; set DYPAM_DATA_MIRROR or runtime.data_mirror right."
        )
    places = [mirror / entry.key, mirror.parent / entry.key]
    return next((place for place in places if place.is_file()), None)


def _download(entry: Entry, part: Path, mirror: Path | str | None, offline: bool) -> None:
    why = "runtime.offline is set"
    for _ in range(0 if offline else ATTEMPTS):
        try:
            return _resume(entry, part)
        except requests.HTTPError as error:
            why = str(error).split(" for url")[0]
            break
        except requests.RequestException as error:
            why = f"no connection ({type(error).__name__})"
    absent = f", and the mirror {mirror} lacks it" if mirror else ""
    raise DataError(
        f"Cannot get {entry.key} from {entry.url}: {why}{absent}; give a local folder that holds "
        f"{entry.key} by DYPAM_DATA_MIRROR=/folder or runtime.data_mirror=/folder."
    )


def _resume(entry: Entry, part: Path) -> None:
    """Go on with the download in `part`, from its end where the server can."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(entry.url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
        if have and answer.status_code == requests.codes.requested_range_not_satisfiable:
            if blob_id(part) != entry.blob:
                part.unlink()
                _resume(entry, part)
            return
        answer.raise_for_status()
        have = have if answer.status_code == requests.codes.partial_content else 0
        total = have + int(answer.headers["Content-Length"]) if "Content-Length" in answer.headers else None
        bar = tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=entry.key, leave=False)
        with part.open("ab" if have else "wb") as file, bar:
            for chunk in answer.iter_content(CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
