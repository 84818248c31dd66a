"""Examples: the template byte for byte, ids, answers, sources, overlap; the real files with their counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from datasets import Dataset
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from data import examples, fetch
from data.examples import choose, digest, gsm8k_instruct, llm_adapters, load, normalise, overlap, prompt
from data.fetch import DataError, Entry, Files, blob_id, manifest

CONFIGS = Path(__file__).parents[2] / "configs"
TESTSETS = sorted(path.stem for path in (CONFIGS / "testset").glob("*.yaml"))
SUITES = sorted(path.stem for path in (CONFIGS / "suite").glob("*.yaml"))


def composed(choice: str, package: str) -> dict:
    with initialize_config_dir(str(CONFIGS), version_base=None):
        config = compose(overrides=[f"+{choice}"])
    return OmegaConf.to_container(config[package], resolve=True)


@pytest.fixture
def files(monkeypatch, tmp_path: Path):
    """A factory: rows → `Files` over a mirror with that one file, key `toy.json` or `toy.jsonl`."""

    def make(rows: list[dict], key: str = "toy.json", said: int | None = None) -> Files:
        mirror = tmp_path / "mirror"
        mirror.mkdir(exist_ok=True)
        text = json.dumps(rows) if key.endswith("json") else "\n".join(map(json.dumps, rows))
        (mirror / key).write_text(text)
        entry = Entry(key, "toy", "rev", key, "http://127.0.0.1:9/", blob_id(mirror / key), said or len(rows))
        monkeypatch.setattr(fetch, "manifest", lambda: {key: entry})
        monkeypatch.setattr(examples, "manifest", lambda: {key: entry})
        return Files(tmp_path / "cache", mirror, offline=True)

    return make


def row(instruction: str, answer: str, output: str = "out", context: str = "") -> dict[str, str]:
    return {"instruction": instruction, "input": context, "output": output, "answer": answer}


def test_template_byte_for_byte() -> None:
    assert prompt("What is 2+2?").encode() == (
        b"Below is an instruction that describes a task. Write a response that appropriately completes the "
        b"request.\n\n### Instruction:\nWhat is 2+2?\n\n### Response:\n"
    )
    assert prompt("Add.", "2 2").endswith("### Instruction:\nAdd.\n\n### Input:\n2 2\n\n### Response:\n")
    assert prompt("{instruction} {0}") == prompt("X").replace("X", "{instruction} {0}")


def test_rows_keep_order_duplicates_and_text(files) -> None:
    rows = [row(" Twice? ", "576.0"), row(" Twice? ", "576.0"), row("Third", "0.625", "\nA: x", "ctx")]
    found = llm_adapters(files=files(rows), file="toy.json", name="toy", answer="number")
    assert found["id"] == ["toy/0", "toy/1", "toy/2"]
    assert found["prompt"] == [prompt(" Twice? "), prompt(" Twice? "), prompt("Third", "ctx")]
    assert found["response"] == ["out", "out", "\nA: x"]
    assert found["answer"] == ["576", "576", "0.625"]


@pytest.mark.parametrize(
    ("answer", "kind", "normal"),
    [
        ("576.0", "number", "576"),
        ("1.8333333333333335", "number", "1.8333333333333335"),
        ("109,200,000", "number", "109200000"),
        ("-3", "number", "-3"),
        (" A ", "letter5", "A"),
        ("true", "boolean", "true"),
        ("answer5", "answer5", "answer5"),
    ],
)
def test_normal_answers(answer: str, kind: str, normal: str) -> None:
    assert normalise(answer, kind) == normal


@pytest.mark.parametrize(("answer", "kind"), [("five", "number"), ("F", "letter5"), ("answer5", "answer4")])
def test_a_label_of_another_format_is_refused(answer: str, kind: str) -> None:
    with pytest.raises(DataError, match=answer):
        normalise(answer, kind)


def test_limit_is_a_seeded_choice_with_the_ids_of_the_whole_file(files) -> None:
    rows = [row(f"Q{index}", str(index)) for index in range(50)]
    given = files(rows)
    whole = llm_adapters(files=given, file="toy.json", name="toy", answer="number")
    part = llm_adapters(files=given, file="toy.json", name="toy", answer="number", limit=10, seed=1)
    assert len(part) == 10
    assert all(example in list(whole) for example in part)
    assert choose(50, 10, 1) == choose(50, 10, 1) != choose(50, 10, 2)
    with pytest.raises(DataError, match="51"):
        choose(50, 51, 0)


def test_row_count_is_checked(files) -> None:
    with pytest.raises(DataError, match="has 1 rows where"):
        llm_adapters(files=files([row("Q", "1")], said=2), file="toy.json", name="toy")


def test_gsm8k_in_instruction_format(files) -> None:
    solution = "She sold 48/2 = <<48/2=24>>24 in May.\nThat is 1,000+72 = <<1000+72=1072>>1072.\n#### 1,072"
    given = files([{"question": "How many?", "answer": solution}], key="toy.jsonl")
    found = gsm8k_instruct(files=given, file="toy.jsonl", name="gsm")
    assert found[0] == {
        "id": "gsm/0",
        "prompt": prompt("How many?"),
        "response": "She sold 48/2 = 24 in May.\nThat is 1,000+72 = 1072.\nThe answer is 1072.",
        "answer": "1072",
    }


def test_load_calls_a_target_and_leaves_errors_alone(files) -> None:
    source = {
        "_target_": "data.examples.llm_adapters",
        "file": "toy.json",
        "name": "toy",
        "answer": "letter5",
    }
    assert load(source, files([row("Q", "B")]))["answer"] == ["B"]
    with pytest.raises(DataError, match="A/B/C/D/E"):
        load(source, files([row("Q", "7")]))


def test_overlap_sees_through_case_spaces_and_punctuation() -> None:
    tests = Dataset.from_list([{"id": "t/0", "prompt": " Sam has 3 cats ."}, {"id": "t/1", "prompt": "New?"}])
    train = Dataset.from_list([{"id": "x/0", "prompt": "sam has 3 cats."}])
    assert overlap(tests, train) == ["t/0"]


def test_digest_is_sha256() -> None:
    assert digest("abc") == "ba7816bf8f01cfea"


@pytest.mark.parametrize("name", TESTSETS)
def test_test_sets_are_consistent(name: str) -> None:
    config = composed(f"testset={name}", "testset")
    kind = config["answer"]
    assert config["name"] == config["source"].get("name", config["name"]) == name
    assert kind == "number" or kind in examples.LABELS
    if "file" in config["source"]:
        assert config["rows"] == manifest()[config["source"]["file"]].rows
        assert config["source"]["answer"] == kind


def test_counts_are_the_papers() -> None:
    counts = {name: composed(f"testset={name}", "testset")["rows"] for name in TESTSETS}
    assert sum(counts[name] for name in composed("suite=math10k", "suite")["tests"]) == 4314
    assert sum(counts[name] for name in composed("suite=commonsense15k", "suite")["tests"]) == 22419


@pytest.mark.parametrize("name", SUITES)
def test_suites_are_consistent(name: str) -> None:
    suite = composed(f"suite={name}", "suite")
    assert suite["name"] == name
    assert suite["train"]["_target_"].startswith("data.")
    for key, test in suite["tests"].items():
        assert key == test["name"]
        assert test["rows"] == (test["source"].get("limit") or test["source"].get("size") or test["rows"])


def test_contamination_is_marked_in_the_maths_suite() -> None:
    tests = composed("suite=math10k", "suite")["tests"]
    assert {name for name, test in tests.items() if test.get("contaminated")} == {
        "addsub", "multiarith", "singleeq", "mawps",
    }  # fmt: skip


def test_loading_imports_no_torch() -> None:
    code = (
        "import sys; from data import collate, examples, fetch, minimath; "
        "minimath.exam(files=None, answer='number', name='x', size=1); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=CONFIGS.parent)


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Files:
    mirror = os.environ.get("DYPAM_DATA_MIRROR")
    assert mirror, "tests marked real need DYPAM_DATA_MIRROR=/folder of LLM-Adapters' files"
    return Files(tmp_path_factory.mktemp("cache"), Path(mirror), offline=True)


def mirrored(name: str) -> bool:
    """Whether the mirror has a test set's file: which sets a mirror holds is its owner's choice."""
    config = yaml.safe_load((CONFIGS / "testset" / f"{name}.yaml").read_text())
    mirror = os.environ.get("DYPAM_DATA_MIRROR", "")
    return (Path(mirror) / config["source"].get("file", "-")).is_file()


@pytest.mark.real
def test_every_mirrored_test_set_loads_with_its_count(real: Files) -> None:
    present = [name for name in TESTSETS if mirrored(name)]
    assert len(present) >= 12
    for name in present:
        config = composed(f"testset={name}", "testset")
        found = load(config["source"], real)
        assert len(found) == config["rows"], name
        assert found["id"] == [f"{name}/{index}" for index in range(len(found))]


@pytest.mark.real
def test_the_gsm8k_suite_loads_and_is_disjoint(real: Files) -> None:
    suite = composed("suite=gsm8k-1k", "suite")
    train = load(suite["train"], real)
    assert len(train) == 1000
    assert not any("<<" in text or "####" in text for text in train["response"])
    for test in suite["tests"].values():
        found = load(test["source"], real)
        assert len(found) == test["rows"] == 200
        assert overlap(found, train) == []
