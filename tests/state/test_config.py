"""The configuration: what is right is typed, what is wrong gets one sentence with field, value and fix."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dypam import validate
from dypam.config import ConfigError, RunConfig, differences
from dypam.validate import check_targets
from eval import extract
from tests.state.example import DROP, config

A_PATH = "it becomes part of a path"
BAD: list[tuple[dict[str, Any], str]] = [
    # keys
    (
        {"train__learning_rate": 1e-3},
        "train.learning_rate (value 0.001) is not a known key; remove it, or use one",
    ),
    ({"train__lrr": 1e-3}, "train.lrr (value 0.001) is not a known key; use lr instead."),
    ({"train__micro_batchs": 2}, "train.micro_batchs (value 2) is not a known key; use micro_batch instead."),
    ({"sed": 1}, "sed (value 1) is not a known key; use seed instead."),
    (
        {"suite__tests__digits__chanse": 1},
        "suite.tests.digits.chanse (value 1) is not a known key; use chance",
    ),
    ({"seed": DROP}, "seed is missing; add it"),
    ({"backbone__path": DROP}, "backbone.path is missing"),
    ({"suite__label": DROP}, "suite.label is missing"),
    ({"suite__tests__digits__rows": DROP}, "suite.tests.digits.rows is missing"),
    ({"method__name": DROP}, "method.name is missing"),
    ({"seed": "???"}, "seed is ??? (not set); give it on the command line"),
    ({"method__r": "???"}, "method.r is ??? (not set)"),
    (
        {"backbone__architecture__vision": {"depth": "???"}},
        "backbone.architecture.vision.depth is ??? (not set)",
    ),
    # types
    ({"backbone": "llama"}, "backbone is 'llama'; give a mapping of its fields."),
    ({"train": None}, "train is None; give a mapping of its fields."),
    ({"suite__tests": []}, "suite.tests is []; give a mapping."),
    ({"suite__tests__digits": "gsm8k"}, "suite.tests.digits is 'gsm8k'; give a mapping of its fields."),
    ({"train__lr": "fast"}, "train.lr is 'fast'; give a number."),
    ({"train__lr": None}, "train.lr is None; give a number."),
    ({"train__lr": float("nan")}, "train.lr is nan; give a number."),
    ({"train__lr": float("inf")}, "train.lr is inf; give a number."),
    ({"train__lr": True}, "train.lr is True; give a number."),
    ({"train__micro_batch": 2.0}, "train.micro_batch is 2.0; give a whole number."),
    ({"train__max_steps": 1.5}, "train.max_steps is 1.5; give a whole number or null."),
    ({"train__betas": 0.9}, "train.betas is 0.9; give a list of numbers."),
    ({"train__betas": [0.9, "x"]}, "train.betas[1] is 'x'; give a number."),
    ({"train__gradient_checkpointing": "yes"}, "train.gradient_checkpointing is 'yes'; give true or false."),
    ({"decode__merge": 1}, "decode.merge is 1; give true or false."),
    ({"seed": True}, "seed is True; give a whole number."),
    ({"seed": "2333"}, "seed is '2333'; give a whole number."),
    ({"method": None}, "method is None; give a mapping."),
    ({"backbone__name": 7}, "backbone.name is 7; give text."),
    ({"method__name": 7}, "method.name is 7; give text."),
    ({"backbone__whole_checkpoint": "big"}, "backbone.whole_checkpoint is 'big'; give a mapping or null."),
    # values
    ({"seed": -1}, "seed is -1; give a whole number from 0 to 4294967295."),
    ({"seed": 2**32}, "seed is 4294967296; give"),
    ({"train__lr": 0}, "train.lr is 0.0; give a number above 0."),
    ({"train__eps": -1e-8}, "train.eps is -1e-08; give a number above 0."),
    ({"train__warmup_ratio": 1.5}, "train.warmup_ratio is 1.5; give a fraction from 0 to 1."),
    ({"train__weight_decay": -0.1}, "train.weight_decay is -0.1; give 0 or a number above it."),
    ({"train__betas": [0.9]}, "train.betas is [0.9]; give two numbers from 0 to below 1"),
    ({"train__betas": [0.9, 1.0]}, "train.betas is [0.9, 1.0]; give two numbers"),
    ({"train__micro_batch": 0}, "train.micro_batch is 0; give a whole number of at least 1."),
    ({"train__epochs": 0}, "train.epochs is 0.0; give a number above 0."),
    ({"train__max_steps": 0}, "train.max_steps is 0; give a whole number of at least 1."),
    ({"train__max_length": 1}, "train.max_length is 1; give a whole number of at least 2 tokens."),
    ({"train__validation_size": 0}, "train.validation_size is 0; give a whole number of at least 1."),
    ({"train__eval_every": 0}, "train.eval_every is 0"),
    ({"train__checkpoint_every": -5}, "train.checkpoint_every is -5"),
    ({"train__keep_checkpoints": 0}, "train.keep_checkpoints is 0"),
    ({"train__clip_grad": 0.0}, "train.clip_grad is 0.0; give a number above 0."),
    ({"train__logit_rows": 0}, "train.logit_rows is 0"),
    (
        {"train__precision": "fp16"},
        "train.precision is 'fp16'; give one of auto, fp32, bf16, bf16_autocast, bf16_eng",
    ),
    ({"train__loss_on": "prompt"}, "train.loss_on is 'prompt'; give one of response, all."),
    (
        {"train__loss_normalization": "mean"},
        "train.loss_normalization is 'mean'; give one of step, micro_batch.",
    ),
    (
        {"train__attn_implementation": "flash"},
        "train.attn_implementation is 'flash'; give one of sdpa, eager",
    ),
    ({"decode__max_new_tokens": 0}, "decode.max_new_tokens is 0"),
    ({"decode__batch_size": 0}, "decode.batch_size is 0"),
    (
        {"decode__precision": "bf16_engine"},
        "decode.precision is 'bf16_engine'; give one of auto, fp32, bf16, bf16_auto",
    ),
    ({"prompt__bos": "<s>"}, "prompt.bos is '<s>'; give one of tokenizer, literal, none."),
    ({"runtime__device": "gpu"}, "runtime.device is 'gpu'; give auto, cpu, cuda, or one GPU such as cuda:0."),
    ({"runtime__threads": 0}, "runtime.threads is 0"),
    ({"runtime__lease_ttl": 0}, "runtime.lease_ttl is 0.0"),
    ({"runtime__wandb": "yes"}, "runtime.wandb is 'yes'; give one of auto, online, offline, off."),
    ({"runtime__wandb": True}, "runtime.wandb is True; give text."),
    ({"runtime__cache_dir": " "}, "runtime.cache_dir is ' '; give some text."),
    ({"run_dir": ""}, "run_dir is ''; give some text."),
    ({"backbone__path": ""}, "backbone.path is ''; give some text."),
    ({"backbone__name": "../up"}, A_PATH),
    ({"backbone__name": ""}, A_PATH),
    ({"method__name": "a/b"}, A_PATH),
    ({"method__name": ".hidden"}, A_PATH),
    ({"suite__name": "two words"}, A_PATH),
    ({"suite__name": "x" * 101}, A_PATH),
    (
        {"backbone__architecture": {}},
        "backbone.architecture is {}; give a mapping of Transformers config fields",
    ),
    (
        {"backbone__architecture": {"model_type": 3}},
        "backbone.architecture is {'model_type': 3}; give a mapping",
    ),
    ({"method___target_": DROP}, "; give a mapping whose _target_ is the dotted path"),
    ({"method___target_": "LoRA"}, "; give a mapping whose _target_ is the dotted path"),
    (
        {"suite__train": {"_target_": "data.examples;x"}},
        "suite.train is {'_target_': 'data.examples;x'}; give",
    ),
    ({"suite__tests__digits__source": {}}, "suite.tests.digits.source is {}; give a mapping whose _target_"),
    ({"suite__tests": {}}, "suite.tests is {}; give a mapping of at least one test set."),
    (
        {"suite__tests__digits__answer": "letter"},
        "suite.tests.digits.answer is 'letter'; give one of number, letter5",
    ),
    ({"suite__tests__digits__rows": 0}, "suite.tests.digits.rows is 0"),
    (
        {"suite__tests__digits__chance": 20},
        "suite.tests.digits.chance is 20.0; give a fraction from 0 to 1.",
    ),
    # combinations
    (
        {"train__global_batch": 5},
        "train.global_batch is 5, which train.micro_batch=2 does not divide; give a multiple",
    ),
    ({"train__global_batch": 1}, "train.global_batch is 1, which train.micro_batch=2"),
    ({"suite__tests__digits__name": "words"}, "suite.tests.digits.name is 'words'; use one word for both"),
    (
        {"train__attn_implementation": "flash_attention_2"},
        "needs a GPU, and runtime.device is 'cpu'; set train.attn",
    ),
    (
        {
            "train__attn_implementation": "flash_attention_2",
            "runtime__device": "cuda",
            "decode__precision": "fp32",
        },
        "cannot work in fp32; set train.precision and decode.precision to bf16",
    ),
]


def is_a_sentence(message: str) -> bool:
    return "\n" not in message and message.endswith(".") and message.count(";") >= 1 and len(message) < 500


@pytest.mark.parametrize(("changes", "words"), BAD, ids=[words[:50] for _, words in BAD])
def test_bad_configuration(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        config(**changes)
    assert words in str(refusal.value)
    assert is_a_sentence(str(refusal.value))


def test_not_even_a_mapping() -> None:
    with pytest.raises(ConfigError, match="the configuration is 3; give a mapping"):
        RunConfig.from_resolved(3)  # type: ignore[arg-type]


def test_good_configuration_is_typed_and_filled() -> None:
    built = config(train__lr=1, runtime__wandb=False, runtime__lease_ttl=5, runtime__device="cuda:1")
    assert (built.train.lr, type(built.train.lr)) == (1.0, float)
    assert built.runtime.wandb == "off"
    assert type(built.runtime.lease_ttl) is float
    assert built.suite.tests["digits"].answer == "number"
    assert built.train.validation_size == 300
    assert built.method["factor"] == 2.0
    assert built.backbone.revision is None


def test_lists_inside_free_mappings_are_kept() -> None:
    assert config(method__target_modules=["q_proj", "v_proj"]).method["target_modules"] == [
        "q_proj",
        "v_proj",
    ]


def test_identity_is_what_and_not_how() -> None:
    base = config().identity()
    assert config(runtime__device="auto", runtime__offline=True, run_dir="x", results="y").identity() == base
    for change in ({"seed": 1}, {"train__lr": 0.5}, {"decode__batch_size": 1}, {"method__factor": 3.0}):
        assert config(**change).identity() != base


def test_differences_name_dotted_keys_with_both_values() -> None:
    one = {"a": 1, "b": {"c": [1, 2], "d": "x"}, "e": None}
    other = {"a": 1, "b": {"c": [1], "d": "x", "f": 0}, "g": {}}
    assert differences(one, other) == [
        "b.c is [1, 2] there, [1] here",
        "b.f is absent there, 0 here",
        "e is None there, absent here",
        "g is absent there, {} here",
    ]
    assert differences(one, one) == []


def test_a_mended_label_makes_no_other_run() -> None:
    one = {"method": {"name": "dypam", "label": "DyPAM"}, "suite": {"tests": {"sums": {"label": "Sums"}}}}
    other = {"method": {"name": "dypam", "label": "ours"}, "suite": {"note": "…", "tests": {"sums": {}}}}
    assert differences(one, other) == []


def test_targets_are_checked_without_being_called() -> None:
    method = check_targets(config())
    assert (method.name, method.label, method.factor) == ("scale", "scale", 2.0)


BAD_TARGETS: list[tuple[dict[str, Any], str]] = [
    (
        {"method___target_": "baselines.nothing.LoRA"},
        "method._target_ is 'baselines.nothing.LoRA', which cannot be",
    ),
    (
        {"method___target_": "baselines.base.Nothing"},
        "method._target_ is 'baselines.base.Nothing', which cannot be",
    ),
    (
        {"method___target_": "pathlib.Path"},
        "method._target_ is 'pathlib.Path'; give a subclass of dypam.method.Method.",
    ),
    (
        {"method__factr": 1},
        "method.factr (value 1) is unknown to tests.state.example.Scale; use factor instead.",
    ),
    ({"method__factor": DROP}, "method.factor is missing; tests.state.example.Scale needs it."),
    ({"method__factor": -1}, "method scale refuses its arguments (factor must be above 0); correct them."),
    ({"method___partial_": True}, "method._partial_ (value True) is unknown to"),
    (
        {"decode__merge": True},
        "decode.merge is true, but the method scale cannot be merged into the backbone; set",
    ),
    (
        {"suite__train__cuont": 3},
        "suite.train.cuont (value 3) is unknown to tests.state.example.examples; use count",
    ),
    ({"suite__train__count": DROP}, "suite.train.count is missing; tests.state.example.examples needs it."),
    (
        {"suite__tests__digits__source___target_": "os.nothing"},
        "suite.tests.digits.source._target_ is 'os.nothing'",
    ),
]


@pytest.mark.parametrize(("changes", "words"), BAD_TARGETS, ids=[words[:50] for _, words in BAD_TARGETS])
def test_bad_target(changes: dict[str, Any], words: str) -> None:
    built = config(**changes)
    with pytest.raises(ConfigError) as refusal:
        check_targets(built)
    assert words in str(refusal.value)
    assert is_a_sentence(str(refusal.value))


def test_unknown_fields_of_a_peft_method_are_refused_before_any_model() -> None:
    built = config(method={"_target_": "baselines.lora.LoRA", "name": "lora", "rnk": 4})
    with pytest.raises(ConfigError, match=re.escape("method.rnk")):
        check_targets(built)


def test_answer_formats_are_those_that_are_read() -> None:
    """Written twice, as the wheel has no `data`."""
    assert set(validate.ANSWERS) == set(extract.FORMATS)
