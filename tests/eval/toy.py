"""A made-up suite and prediction files for it, without any model."""

import json
from dataclasses import asdict

from data import examples
from dypam.config import Suite, TestSet
from eval import extract, score


def source(*, files, name, count, answer):
    """Examples `name/0`…; the answer of number i is i, of a label format its labels in turn."""
    labels = extract.FORMATS[answer]
    return examples.to_dataset(
        {
            "id": f"{name}/{index}",
            "prompt": examples.prompt(f"{name}: question {index}?"),
            "response": "",
            "answer": labels[index % len(labels)] if labels else str(index),
        }
        for index in range(count)
    )


def make_set(name, count, answer="number", chance=0.0, **more):
    given = {"_target_": "tests.eval.toy.source", "name": name, "count": count, "answer": answer}
    return TestSet(name, name.upper(), given, answer, count, chance, **more)


def suite():
    tests = [make_set("sums", 8), make_set("picks", 10, "letter5", 0.2, contaminated="2 of 10 questions")]
    return Suite("toy", "Toy", {}, {t.name: t for t in tests})


def prediction(row, response, adapter):
    return {
        "id": row["id"],
        "prompt": row["prompt"],
        "response": response,
        "n_tokens": 3,
        "prompt_digest": examples.digest(row["prompt"]),
        "target_digest": examples.digest(row["answer"]),
        "adapter_digest": adapter,
    }


def predict(run_dir, given, right, adapter=score.NO_ADAPTER):
    """Write prediction files with the first `right[name]` answers right; return the rows by test set."""
    written = {}
    (run_dir / "predictions").mkdir(parents=True, exist_ok=True)
    if adapter != score.NO_ADAPTER:
        (run_dir / "adapter").mkdir(exist_ok=True)
        (run_dir / "adapter" / "backbone.json").write_text(json.dumps({"adapter_digest": adapter}))
    for name, test in given.tests.items():
        rows = [
            prediction(row, f"The answer is {row['answer'] if index < right[name] else 'unknown'}", adapter)
            for index, row in enumerate(examples.load(test.source, None))
        ]
        write(run_dir, name, rows)
        written[name] = rows
    return written


def write(run_dir, name, rows):
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (run_dir / "predictions" / f"{name}.jsonl").write_text(lines)


def identity(given, backbone, method, seed):
    return {
        "backbone": {"name": backbone, "label": backbone.upper()},
        "method": {"_target_": "x.Y", "name": method, "label": method.capitalize()},
        "suite": asdict(given),
        "prompt": {"bos": "tokenizer"},
        "train": {"lr": 0.001, "epochs": 3.0},
        "decode": {"max_new_tokens": 256, "batch_size": 32, "precision": "auto", "merge": False},
        "seed": seed,
    }


def finish(results, backbone, method, seed, right, *, given=None, status="finished", **more):
    """Write a whole finished run; `right` counts right answers by test set.  Returns its directory."""
    given = given or suite()
    run_dir = results / "runs" / given.name / backbone / method / f"seed{seed}"
    predict(run_dir, given, right, adapter=f"{method}{seed}")
    record = {
        "status": status,
        "stages": {"train": "", "generate": ""},
        "seconds": {},
        "identity": identity(given, backbone, method, seed),
        "attempts": [{"git": {"commit": "a" * 40, "dirty": False}}],
        **more,
    }
    (run_dir / "record.json").write_text(json.dumps(record))
    return run_dir


def change_record(run_dir, change):
    path = run_dir / "record.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
