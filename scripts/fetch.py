"""Fetch and verify data files into the cache; all of data/manifest.yaml, or those whose key contains a word.

  python scripts/fetch.py                         (all)
  python scripts/fetch.py math_10k dataset/gsm8k  (some)
  python scripts/fetch.py --list                  (keys, rows, and which are in the cache)

DYPAM_DATA_MIRROR=/folder names a local copy with the same relative paths, DYPAM_CACHE=/folder the cache.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.fetch import DataError, ensure, manifest
from dypam.config import ConfigError
from scripts import command


def fetch(words: list[str], listing: bool) -> None:
    """Fetch the files whose key contains one of `words` (all without words), or list them."""
    cache, mirror = Path(os.environ.get("DYPAM_CACHE", ".cache")), os.environ.get("DYPAM_DATA_MIRROR")
    entries = [e for e in manifest().values() if not words or any(word in e.key for word in words)]
    if not entries:
        raise ConfigError(f"No key of data/manifest.yaml contains {' or '.join(words)}; --list shows them.")
    failed = []
    for entry in entries:
        there = (cache / "data" / entry.key).exists()
        if not listing:
            try:
                there = ensure(entry.key, cache=cache, mirror=mirror).exists()
            except DataError as error:
                failed.append(str(error))
        print(f"{'in cache' if there else 'missing ':8}  {entry.rows:>7,} rows  {entry.key}", flush=True)
    if failed:
        raise DataError("\n".join(failed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("words", nargs="*", help="parts of keys")
    parser.add_argument("--list", action="store_true", help="fetch nothing")
    given = parser.parse_args()
    with command.exit_codes():
        fetch(given.words, given.list)
