"""The results page: one self-contained HTML file with every run, its curves, its provenance and its answers.

No server and no outside request: data travels inside the page as compressed JSON, which the page unpacks when
a view needs it.  Files only, no torch.
"""

from __future__ import annotations

import base64
import gzip
from pathlib import Path
from typing import Any

import orjson

from dypam.files import write_atomic
from eval.aggregate import Source
from eval.report import gather, samples

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("base.js", "plots.js", "tables.js", "trends.js", "examples.js", "app.js")

Chunks = dict[str, bytes]


def write_report(
    results: Path,
    out: Path,
    source: Source | None = None,
    *,
    workers: int = 2,
    most_predictions: int = samples.MOST_PREDICTIONS,
    most_bytes: int = samples.MOST_BYTES,
) -> dict[str, Any]:
    """Write the results page of all runs under `results` to the file `out`.

    Args:
        results: the folder that holds `runs/`.
        out: the HTML file.
        source: where the test sets' examples come from.
        workers: processes that score.
        most_predictions: examples times runs shown at most; beyond that, examples are sampled.
        most_bytes: size of the examples at most, compressed.

    Returns:
        Counts for people: runs, scored runs, predictions shown and there, bytes of the page.
    """
    source = source or Source()
    gathered = gather.gather(results, source, workers=workers)
    index = gather.index(gathered)
    index["examples"], chunks = _examples(gathered, source, most_predictions, most_bytes)
    chunks |= {"details": _pack(gather.details(gathered)), "curves": _pack(gather.curves(gathered))}
    page = render({"index": _pack(index), **chunks})
    write_atomic(out, page)
    shown, total = index["examples"]["shown"], index["examples"]["total"]
    scored = sum(found.run is not None for found in gathered.runs)
    return {
        "runs": len(gathered.runs), "scored": scored, "shown": shown, "predictions": total, "bytes": len(page)
    }  # fmt: skip


def _examples(
    gathered: gather.Gathered, source: Source, most: int, most_bytes: int
) -> tuple[dict[str, Any], Chunks]:
    """Return the list of example chunks and the chunks; fewer examples until they fit."""
    sheets, files = samples.sheets(gathered), source.files()
    fraction = samples.share(sheets, most)
    while True:
        chunks = {
            f"examples-{i}": _pack(samples.read_sheet(gathered, sheet, files, fraction))
            for i, sheet in enumerate(sheets)
        }
        size = sum(map(len, chunks.values()))
        if size <= most_bytes or fraction * max(sheet.rows for sheet in sheets) < 1:
            break
        fraction *= 0.9 * most_bytes / size
    shown = [len(samples.chosen(sheet.rows, fraction)) for sheet in sheets]
    listed = [
        {
            "suite": s.suite,
            "rehearsal": s.rehearsal,
            "test": s.test,
            "runs": s.runs,
            "rows": s.rows,
            "shown": n,
        }
        for s, n in zip(sheets, shown, strict=True)
    ]
    total = sum(len(sheet.runs) * sheet.rows for sheet in sheets)
    predictions = sum(len(sheet.runs) * n for sheet, n in zip(sheets, shown, strict=True))
    return {"sheets": listed, "shown": predictions, "total": total}, chunks


def _pack(value: Any) -> bytes:
    return gzip.compress(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS), 6, mtime=0)


def render(chunks: Chunks) -> bytes:
    """Return the page with its style, its scripts and the chunks inside."""
    parts = {
        "<!--style-->": _element("style", _text("style.css")),
        "<!--script-->": _element("script", "\n".join(map(_text, SCRIPTS))),
        "<!--chunks-->": "\n".join(
            f'<script type="text/plain" id="chunk-{name}">{base64.b64encode(chunk).decode()}</script>'
            for name, chunk in chunks.items()
        ),
    }
    page = _text("page.html")
    for place, text in parts.items():
        page = page.replace(place, text)
    return page.encode()


def _text(name: str) -> str:
    return (PAGE / name).read_text("utf-8")


def _element(tag: str, text: str) -> str:
    return f"<{tag}>\n{text}\n</{tag}>"
