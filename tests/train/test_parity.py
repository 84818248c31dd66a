"""Our loop gives the losses and weights of Transformers' Trainer, with both ways of averaging the loss."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from dypam import schedule
from dypam.backbone import load_backbone
from dypam.config import RunConfig
from dypam.corpus import Corpus
from dypam.method import RunContext
from dypam.validate import check_targets
from tests.train import cases, processes, runs


def by_trainer(config: RunConfig, out: Path) -> None:
    """Train the same work by Transformers' Trainer, one process, and save losses and weights."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from data.collate import collate

    model, tokenizer = load_backbone(
        config.backbone, dtype=torch.float32, device="cpu", runtime=config.runtime
    )
    corpus, steps = Corpus.load(config, tokenizer), config.train.max_steps
    order = [
        i
        for step in range(1, steps + 1)
        for i in schedule.examples_of(step, len(corpus.train), config.train.global_batch, config.seed)
    ]
    model = check_targets(config).attach(model, RunContext(config.seed, steps))
    losses: list[float] = []

    class Losses(TrainerCallback):
        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            losses.extend([logs["loss"]] if "loss" in logs else [])

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = TrainingArguments(
        output_dir=str(out.parent / "trainer"),
        per_device_train_batch_size=config.train.micro_batch,
        gradient_accumulation_steps=config.train.global_batch // config.train.micro_batch,
        max_steps=steps,
        learning_rate=config.train.lr,
        lr_scheduler_type="cosine",
        warmup_steps=math.ceil(steps * config.train.warmup_ratio),
        weight_decay=config.train.weight_decay,
        max_grad_norm=config.train.clip_grad,
        optim="adamw_torch",
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = InOrder(
        model=model,
        args=arguments,
        train_dataset=[corpus.train[i] for i in order],
        data_collator=lambda rows: collate(rows, corpus.pad),
        callbacks=[Losses()],
    )
    # false: the mean of micro-batch means, as Trainer did for years
    trainer.model_accepts_loss_kwargs = config.train.loss_normalization == "step"
    trainer.train()
    trained = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    torch.save({"losses": losses, "trained": trained}, out)


def by_us(config: RunConfig, out: Path) -> None:
    from tests.train.test_train import live

    model = live(config).session.model
    losses = [row["loss"] for row in runs.record(config)["losses"] if "loss" in row]
    trained = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    torch.save({"losses": losses, "trained": trained}, out)


@pytest.mark.parametrize("normalization", ["step", "micro_batch"])
def test_trainer_parity(tiny_backbone_dir, tmp_path: Path, normalization: str) -> None:
    config = cases.config(
        tmp_path / "run",
        tiny_backbone_dir("llama"),
        cases.LORA,
        loss_normalization=normalization,
        weight_decay=0.1,
        clip_grad=0.5,
        warmup_ratio=0.3,
    )
    ours, theirs = tmp_path / "ours.pt", tmp_path / "theirs.pt"
    processes.run(by_trainer, config, theirs, log=tmp_path / "theirs.log")
    processes.run(by_us, config, ours, log=tmp_path / "ours.log")
    one, other = torch.load(ours), torch.load(theirs)
    assert one["losses"] == pytest.approx(other["losses"], abs=1e-3)
    assert one["trained"].keys() == other["trained"].keys()
    for name, weight in one["trained"].items():
        torch.testing.assert_close(weight, other["trained"][name], rtol=1e-3, atol=2e-5)


def test_the_two_normalisations_differ(tiny_backbone_dir, tmp_path: Path) -> None:
    first = cases.config(tmp_path / "step", tiny_backbone_dir("llama"), cases.LORA, max_steps=2)
    train = dataclasses.replace(first.train, loss_normalization="micro_batch")
    second = dataclasses.replace(first, run_dir=str(tmp_path / "micro"), train=train)
    losses = [runs.complete(config)["losses"][0]["loss"] for config in (first, second)]
    assert losses[0] != pytest.approx(losses[1], abs=1e-3)
