"""Aggregation at its full load: 300 finished runs of 12,000 predictions each, no ready scores."""

import json
import random
import shutil
import subprocess
import sys

import pytest

from data import examples
from dypam.config import Suite
from tests.eval import toy

BACKBONES, METHODS, SEEDS = (
    ("one", "two", "three"),
    [f"method{i}" for i in range(20)],
    [2333, 1000, 2000, 3000, 4000],
)
FORMATS = {"numbers": "number", "letters": "letter5", "truths": "boolean", "options": "answer4"}
ROWS = 3000
WORKING = (
    "First, count what each of them has: {a} and {b} make {a} + {b} = {c}. Then take away what was given "
    "back, which leaves {c} - {b} = {a}. Each of the remaining boxes holds the same number, so we divide and "
    "round down. Two of them are not full. "
)

MEASURE = """
import json, sys, threading, time
import psutil
from eval import render, tables
from eval.aggregate import Grid, collect
from eval.layout import Layout

peak, cpu = 0, {}

def watch():
    global peak
    while True:
        held = 0
        for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
            try:
                times, held = process.cpu_times(), held + process.memory_info().rss
                cpu[process.pid] = times.user + times.system
            except psutil.NoSuchProcess:
                pass
        peak = max(peak, held)
        time.sleep(0.1)

if __name__ == "__main__":
    root, backbones, methods, seeds = json.loads(sys.argv[1])
    threading.Thread(target=watch, daemon=True).start()
    start = time.monotonic()
    found = collect(Grid("toy", backbones, methods, seeds), root, workers=2)
    built = tables.build(found, Layout("scale", "Scale", protocols=("paper", "strict"), ours="method0"))
    render.write(built, root + "/tables")
    seconds = time.monotonic() - start
    missing = {str(key): why for key, why in found.missing.items()}
    used = {"cpu": sum(cpu.values()), "bytes": peak}
    print(json.dumps({"seconds": seconds, "runs": len(found.runs), "missing": missing, **used}))
"""


def suite():
    return Suite("toy", "Toy", {}, {n: toy.make_set(n, ROWS, f) for n, f in FORMATS.items()})


def write_runs(root):
    """Write all runs; every row has a response of its own.  Return the number of bytes."""
    given, random_ = suite(), random.Random(0)
    rows = {name: list(examples.load(test.source, None)) for name, test in given.tests.items()}
    heads = {
        name: [toy.prediction(row, "RESPONSE", "ADAPTER") for row in sets] for name, sets in rows.items()
    }
    templates = {name: [json.dumps(head) for head in heads[name]] for name in rows}
    total = 0
    for backbone in BACKBONES:
        for method in METHODS:
            for seed in SEEDS:
                run_dir = toy.finish(root, backbone, method, seed, dict.fromkeys(FORMATS, 0), given=given)
                for name, sets in rows.items():
                    lines = []
                    for row, template in zip(sets, templates[name], strict=True):
                        a, b = random_.randrange(1000), random_.randrange(1000)
                        answer = row["answer"] if random_.random() < 0.5 else "7"
                        text = WORKING.format(a=a, b=b, c=a + b) + f"The answer is {answer}."
                        line = template.replace("RESPONSE", text).replace("ADAPTER", f"{method}{seed}")
                        lines.append(line + "\n")
                    path = run_dir / "predictions" / f"{name}.jsonl"
                    total += path.write_text("".join(lines))
    return total


def change_rows(root, method, change):
    path = root / "runs" / "toy" / "two" / method / "seed1000" / "predictions" / "truths.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    change(lines)
    path.write_text("".join(lines))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_hundred_runs(tmp_path):
    total = write_runs(tmp_path)
    change_rows(tmp_path, "method3", lambda lines: lines.pop(1234))
    change_rows(tmp_path, "method4", lambda lines: lines.append(lines[77]))
    change_rows(
        tmp_path,
        "method5",
        lambda lines: lines.__setitem__(8, lines[8].replace("method51000", "method52000")),
    )
    script = tmp_path / "measure.py"
    script.write_text(MEASURE)
    asked = json.dumps([str(tmp_path), BACKBONES, METHODS, SEEDS])
    command = [sys.executable, str(script), asked]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={"PYTHONPATH": "."})
    measured = json.loads(done.stdout)
    size = f"{total / 1e9:.2f} GB, {measured['bytes'] / 2**30:.2f} GiB"
    print(f"{size}, {measured['seconds']:.0f} s, {measured['cpu']:.0f} CPU-s")
    shutil.rmtree(tmp_path / "runs")
    missing = measured["missing"]
    assert measured["runs"] == 297
    assert "missing row 'truths/1234'" in missing["two/method3/seed1000"]
    assert "duplicated row 'truths/77' (line 3001)" in missing["two/method4/seed1000"]
    assert "foreign row 'truths/8' (line 9) has adapter 'method52000'" in missing["two/method5/seed1000"]
    assert measured["seconds"] < 150
    assert measured["bytes"] < 1.5 * 2**30
