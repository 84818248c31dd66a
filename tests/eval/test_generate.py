"""Generation on tiny random models: batching changes nothing, a killed or damaged run ends the same."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from transformers.utils import logging

from data import examples
from data.collate import collate, encode
from dypam.adapter import save_adapter
from dypam.backbone import load_backbone
from dypam.config import Backbone, ConfigError, Decode, Prompt, RunConfig, Runtime, Train
from dypam.files import read_lines
from dypam.lease import Lease
from dypam.method import RunContext
from dypam.record import Record
from dypam.tuner.digest import weights_digest
from eval import generate, score
from eval.predictions import Predictions, batches_of
from scripts import compose
from tests.eval import toy

LORA = {"_target_": "baselines.lora.LoRA", "name": "lora", "r": 4, "target_modules": "all-linear"}
DYPAM = {"_target_": "dypam.tuner.method.DyPAM", "name": "dypam", "d_e": 8, "rank": 4, "alpha": 0.3}
BASE = {"_target_": "baselines.base.Base", "name": "base"}
PROMPTS = ["a", "What is 3 + 4?", "longer and longer " * 4, "b c", "x" * 23]


def run_config(run_dir, backbone, method=BASE, **decode):
    decode = {"max_new_tokens": 6, "batch_size": 3, **decode}
    return RunConfig(
        Backbone("tiny", "Tiny", str(backbone), {"model_type": "llama"}),
        method,
        toy.suite(),
        Prompt(),
        Train(),
        Decode(**decode),
        Runtime(progress=False, cache_dir=str(run_dir / "cache")),
        1,
        str(run_dir),
        str(run_dir / "run"),
    )


def adapter(config, scale=0.3):
    """Save a random adapter as training would; return its digest."""
    run_dir = Path(config.run_dir)
    method = instantiate(config.method)
    model, _ = load_backbone(config.backbone, dtype=torch.float32, device="cpu", runtime=config.runtime)
    kept = weights_digest(model)
    model = method.attach(model, RunContext(1, 1))
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(scale * torch.randn_like(parameter))
    with Lease.acquire(run_dir) as lease:
        save_adapter(method, model, run_dir, lease, {"weights_digest": kept})
    return score.adapter_digest(run_dir)


def start(config):
    with Lease.acquire(config.run_dir) as lease:
        generate.generate(config, lease)
    return read_lines(Path(config.run_dir) / "predictions" / "sums.jsonl")


def one_by_one(model, tokenizer, prompt, count, stop):
    """Greedy decoding by hand: the whole sequence again for each token, no cache, no padding, no generate."""
    ids, made = encode(tokenizer, prompt)["input_ids"], []
    for _ in range(count):
        logits = model(input_ids=torch.tensor([ids + made]), use_cache=False).logits[0, -1]
        made.append(int(logits.argmax()))
        if made[-1] in stop:
            break
    return made


@pytest.mark.parametrize("method", [None, DYPAM, LORA])
def test_batches_give_the_tokens_of_one_by_one(tiny, tokenizer, family, method):
    model = tiny(family)
    if method:
        model = instantiate(method).attach(model, RunContext(1, 1))
        torch.manual_seed(5)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.3 * torch.randn_like(parameter))
    made = generate.Generator(model.train(), tokenizer, max_new_tokens=12)
    assert not model.training
    together = made._continue([encode(tokenizer, prompt)["input_ids"] for prompt in PROMPTS])
    for prompt, ids in zip(PROMPTS, together, strict=True):
        with torch.inference_mode():
            alone = one_by_one(model, tokenizer, prompt, 12, made.how.stop_tokens)
        assert ids[: len(alone)] == alone
        assert set(ids[len(alone) :]) <= {tokenizer.pad_token_id}


def test_left_padding_with_its_mask(tokenizer):
    batch = collate([encode(tokenizer, text) for text in ("a", "abc")], 0, side="left")
    assert batch["input_ids"][0, :2].tolist() == [0, 0]
    assert batch["attention_mask"].tolist() == [[0, 0, 1, 1], [1, 1, 1, 1]]


@pytest.fixture
def library_log(caplog):
    """What Transformers logs (it warns through its logger)."""
    logging.enable_propagation()
    yield caplog
    logging.disable_propagation()


def test_a_checkpoints_own_generation_settings_do_nothing(tiny, tokenizer, library_log):
    plain = generate.Generator(tiny(), tokenizer, max_new_tokens=8)
    model = tiny()
    for name, value in {"do_sample": True, "temperature": 9.0, "top_k": 3, "repetition_penalty": 5.0}.items():
        setattr(model.generation_config, name, value)
    model.generation_config.eos_token_id = [7, 9]
    odd = generate.Generator(model, tokenizer, max_new_tokens=8)
    assert odd.how.stop_tokens == [1, 7, 9]
    prompts = [encode(tokenizer, prompt)["input_ids"] for prompt in PROMPTS]
    stop = {1, 7, 9}
    for ids, expected in zip(odd._continue(prompts), plain._continue(prompts), strict=True):
        end = next((i + 1 for i, token in enumerate(expected) if token in stop), len(expected))
        assert ids[:end] == expected[:end]
    assert [record.getMessage() for record in library_log.records] == []


def test_text_ends_before_the_first_stop_token(tiny, tokenizer):
    made = generate.Generator(tiny(), tokenizer, max_new_tokens=4)
    letters = tokenizer("ab", add_special_tokens=False)["input_ids"]
    assert made._read([*letters, 1, *letters]) == ("ab", 3)
    assert made._read(letters) == ("ab", 2)
    assert made._read([1, 0, 0]) == ("", 1)


def test_batches_go_from_long_to_short():
    assert batches_of([3, 9, 3, 5, 9], 2) == [[1, 4], [3, 0], [2]]


def test_a_whole_run(tmp_path, tiny_backbone_dir):
    config = run_config(tmp_path, tiny_backbone_dir("qwen3"), DYPAM)
    digest = adapter(config)
    rows = start(config)
    run_dir = Path(config.run_dir)
    assert [row["id"] for row in rows] == [f"sums/{i}" for i in range(8)]
    assert list(rows[0]) == list(toy.prediction({"id": "", "prompt": "", "answer": ""}, "", ""))
    assert {row["adapter_digest"] for row in rows} == {digest}
    assert all(1 <= row["n_tokens"] <= 6 for row in rows)
    assert score.score_run(run_dir, config.suite, None)["protocols"]["paper"]["sums"]["n"] == 8
    notes = json.loads((run_dir / "generation.json").read_text())
    assert (notes["batch_size"], notes["order"], notes["precision"]) == (3, "longest prompt first", "fp32")
    about = json.loads((run_dir / "adapter" / "backbone.json").read_text())
    assert notes["weights_digest"] == about["weights_digest"]
    assert notes["sets"]["sums"]["tokens"] == sum(row["n_tokens"] for row in rows)
    assert notes["sets"]["sums"]["starts"][0]["seconds"] > 0
    record = json.loads((run_dir / "record.json").read_text())
    assert record["generation"] == notes
    assert record["seconds"]["generate"] > 0
    assert record["peak_memory"]["generate_bytes"] > 2**20
    assert "generate" in record["stages"]
    assert not list((run_dir / "predictions").glob("*.partial.jsonl"))


def test_responses_do_not_depend_on_the_batch_size(tmp_path, tiny_backbone_dir):
    rows = {}
    for size in (1, 3, 8):
        config = run_config(tmp_path / str(size), tiny_backbone_dir("gemma3_text"), batch_size=size)
        rows[size] = start(config)
    assert rows[1] == rows[3] == rows[8]


def test_rows_of_another_backbone_are_made_again_without_an_adapter_to_tell(tmp_path, tiny_backbone_dir):
    path = tmp_path / "backbone"
    shutil.copytree(tiny_backbone_dir("gemma3_text"), path)
    config = run_config(tmp_path, path)
    before = start(config)
    shutil.copytree(tiny_backbone_dir("gemma3_text", seed=1), path, dirs_exist_ok=True)
    sums(config).unlink()
    picks = sums(config).with_name("picks.jsonl")
    old = picks.read_text()
    after = start(config)
    assert [row["response"] for row in after] != [row["response"] for row in before]
    assert picks.read_text() != old
    fresh = run_config(tmp_path / "fresh", path)
    assert start(fresh) == after
    assert sums(fresh).with_name("picks.jsonl").read_text() == picks.read_text()


@pytest.fixture
def finished(tmp_path, tiny_backbone_dir):
    config = run_config(tmp_path, tiny_backbone_dir("llama"), LORA)
    adapter(config)
    return config, start(config)


@pytest.fixture
def prompts_made(monkeypatch):
    """Count the prompts that the model is really given."""
    made = []
    plain = generate.Generator._continue
    monkeypatch.setattr(
        generate.Generator,
        "_continue",
        lambda self, prompts: made.append(len(prompts)) or plain(self, prompts),
    )
    return made


def sums(config):
    return Path(config.run_dir) / "predictions" / "sums.jsonl"


def test_a_finished_run_loads_no_model(finished, monkeypatch):
    config, rows = finished
    monkeypatch.setattr(generate.Generator, "of_run", pytest.fail)
    assert start(config) == rows


def test_a_deleted_row_alone_is_made_again(finished, prompts_made):
    config, rows = finished
    toy.write(Path(config.run_dir), "sums", rows[:4] + rows[5:])
    assert start(config) == rows
    assert prompts_made == [1]
    notes = json.loads((Path(config.run_dir) / "generation.json").read_text())
    assert [s["examples"] for s in notes["sets"]["sums"]["starts"]] == [8, 1]


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.update(adapter_digest="another"),
        lambda row: row.update(prompt_digest="another"),
        lambda row: row.update(id="sums/80"),
        lambda row: row.update(response=None),
    ],
)
def test_a_foreign_row_is_dropped_and_made_again(finished, prompts_made, change):
    config, rows = finished
    foreign = [dict(row) for row in rows]
    change(foreign[6])
    toy.write(Path(config.run_dir), "sums", foreign)
    assert start(config) == rows
    assert prompts_made == [1]


def test_a_duplicate_is_dropped(finished, prompts_made):
    config, rows = finished
    toy.write(Path(config.run_dir), "sums", [*rows, rows[0]])
    assert start(config) == rows
    assert prompts_made == []


def test_another_adapter_makes_all_rows_again(finished, prompts_made):
    config, rows = finished
    adapter(config, scale=0.6)
    again = start(config)
    assert sum(prompts_made) == 18
    assert [row["response"] for row in again] != [row["response"] for row in rows]


@pytest.mark.parametrize("torn", [0, 1, 20])
def test_a_batch_that_is_not_whole_is_made_again_whole(finished, prompts_made, torn):
    """One batch is whole, of the next one row and a torn line stand in the partial file."""
    config, rows = finished
    lengths = [len(row["prompt"]) for row in rows]
    order = [index for batch in batches_of(lengths, 3) for index in batch]
    lines = sums(config).read_bytes().splitlines(keepends=True)
    sums(config).unlink()
    partial = b"".join(lines[index] for index in order[:4]) + lines[order[4]][:torn]
    sums(config).with_name("sums.partial.jsonl").write_bytes(partial)
    assert start(config) == rows
    assert prompts_made == [3, 2]
    assert not sums(config).with_name("sums.partial.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "event", ["predictions.mid_line:2", "sums.write", "generation.write", "record.write:2"]
)
def test_killed_and_started_again_the_rows_are_the_same(tmp_path, tiny_backbone_dir, event):
    whole = run_config(tmp_path / "whole", tiny_backbone_dir("llama"))
    expected = start(whole)
    killed = run_config(tmp_path / "killed", tiny_backbone_dir("llama"))
    killed.runtime = whole.runtime
    code = (
        "import pickle, sys; from tests.eval.test_generate import start; start(pickle.load(sys.stdin.buffer))"
    )
    proof = tmp_path / "proof"
    armed = {**os.environ, "DYPAM_KILL_AT": event, "DYPAM_KILL_PROOF": str(proof)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=armed, capture_output=True, input=pickle.dumps(killed))
    assert (done.returncode, proof.read_text().split()[0]) == (-signal.SIGKILL, event.split(":")[0]), (
        done.stderr
    )
    if event.startswith("predictions"):
        assert not sums(killed).exists()
        assert not sums(killed).with_name("sums.partial.jsonl").read_bytes().endswith(b"\n")
    assert start(killed) == expected
    picks = [Path(c.run_dir, "predictions", "picks.jsonl").read_bytes() for c in (whole, killed)]
    assert picks[0] == picks[1]
    assert Record.open(killed.run_dir, killed, None).finished("generate")


def test_resume_keeps_batches_as_they_are(finished):
    config, _ = finished
    run_dir = Path(config.run_dir)
    wanted = score.expected(config.suite.tests["sums"], None)
    one = Predictions(run_dir, "sums", wanted, score.adapter_digest(run_dir))
    sums(config).rename(one.partial)
    with Lease.acquire(config.run_dir) as lease:
        kept, todo = one.resume([[0, 1, 2], [3, 4, 5], [6, 7]], lease)
        assert (len(kept), todo) == (8, [])
        one.partial.write_bytes(b"".join(one.partial.read_bytes().splitlines(keepends=True)[1:]))
        kept, todo = one.resume([[0, 1, 2], [3, 4, 5], [6, 7]], lease)
    assert (sorted(kept), todo) == ([3, 4, 5, 6, 7], [[0, 1, 2]])
    assert [row["id"] for row in read_lines(one.partial)] == [f"sums/{i}" for i in range(3, 8)]


def test_a_damaged_adapter_is_refused(finished):
    config, _ = finished
    sums(config).unlink()
    weights = Path(config.run_dir) / "adapter" / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ConfigError, match="is damaged"):
        start(config)


def test_no_adapter_is_one_sentence(tmp_path, tiny_backbone_dir):
    config = run_config(tmp_path, tiny_backbone_dir("llama"), LORA)
    with pytest.raises(ConfigError, match="has no adapter yet"):
        start(config)
    assert Record.open(config.run_dir, config, None).status is None  # nothing was done


def test_other_weights_of_the_same_shape_are_refused(finished, tiny_backbone_dir):
    config, _ = finished
    sums(config).unlink()
    (Path(config.run_dir) / "record.json").unlink()
    config.backbone.path = str(tiny_backbone_dir("llama", seed=3))
    with pytest.raises(ConfigError, match="digest"):
        start(config)


def test_merged_lora_answers_the_same(finished, tmp_path):
    config, rows = finished
    for path in sums(config).parent.iterdir():
        path.unlink()
    (Path(config.run_dir) / "record.json").unlink()
    config.decode.merge = True
    assert start(config) == rows
    assert json.loads((Path(config.run_dir) / "generation.json").read_text())["merged"] is True


def test_dypam_cannot_be_merged(tmp_path, tiny_backbone_dir):
    config = run_config(tmp_path, tiny_backbone_dir("llama"), DYPAM, merge=True)
    adapter(config)
    with pytest.raises(ConfigError, match="set decode"):
        start(config)


@pytest.mark.parametrize(
    ("asked", "trained", "device", "used"),
    [
        ("auto", "auto", "cpu", "fp32"),
        ("auto", "auto", "cuda:1", "bf16"),
        ("auto", "bf16_autocast", "cuda", "bf16_autocast"),
        ("fp32", "bf16_autocast", "cuda", "fp32"),
    ],
)
def test_precision(tmp_path, asked, trained, device, used):
    config = run_config(tmp_path, "x")
    config.decode.precision, config.train.precision = asked, trained
    assert generate.decode_precision(config, device) == used


@pytest.mark.parametrize("precision", ["bf16", "bf16_autocast"])
def test_low_precision_runs(tmp_path, tiny_backbone_dir, precision):
    config = run_config(tmp_path, tiny_backbone_dir("llama"), DYPAM, precision=precision)
    adapter(config)
    assert len(start(config)) == 8


def test_out_of_memory_halves_the_batch(tiny, tokenizer, monkeypatch, capsys):
    made = generate.Generator(tiny(), tokenizer, max_new_tokens=4)
    prompts = [encode(tokenizer, prompt)["input_ids"] for prompt in PROMPTS]
    expected = made(prompts)
    plain = made._continue

    def limited(batch):
        if len(batch) > 2:
            raise torch.OutOfMemoryError
        return plain(batch)

    monkeypatch.setattr(made, "_continue", limited)
    assert made(prompts) == expected
    assert made.splits == 2
    assert "Out of GPU memory with 5 prompts at once; going on with 2" in capsys.readouterr().out
    monkeypatch.setattr(made, "_continue", lambda batch: (_ for _ in ()).throw(torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        made(prompts[:1])


@pytest.mark.real
def test_real_responses_do_not_depend_on_the_batch():
    config = compose.run_config(["backbone=gemma3-270m", "runtime.device=cpu"])
    model, tokenizer = load_backbone(
        config.backbone, dtype=torch.float32, device="cpu", runtime=config.runtime
    )
    made = generate.Generator(model, tokenizer, max_new_tokens=16)
    questions = [
        "What is 3 + 4?",
        "Name the capital of France.",
        "Tom has 12 apples and eats 5 of them. " * 4,
    ]
    prompts = [encode(tokenizer, examples.prompt(text))["input_ids"] for text in questions]
    assert made(prompts) == [made([prompt])[0] for prompt in prompts]
