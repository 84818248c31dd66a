"""Greedy responses of a run's model to every example of its test sets: the one stage here that needs a model.

Batches go from the longest prompts to the shortest and hold the same examples whenever the run is started, so
that a killed run ends with the same rows; a finished file is in the order of the test set.  A row counts only
with the prompt, answer and adapter digests of this run: others are dropped and made again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from data.collate import collate, encode, pad_id
from dypam.config import RunConfig
from dypam.corpus import files_of
from dypam.distributed import pick_device
from dypam.files import append_lines, read_json, write_json
from dypam.lease import Lease
from dypam.record import Record
from eval.predictions import Predictions, batches_of
from eval.score import adapter_digest, expected

if TYPE_CHECKING:
    import torch
    from torch import nn

ORDER = "longest prompt first"


def generate(config: RunConfig, lease: Lease) -> None:
    """Write `predictions/<test set>.jsonl` for every test set of a run, whatever of it is missing.

    Raises:
        ConfigError: the run has no adapter yet, or the backbone's weights are not those it was trained on.
        DataError: a test set cannot be had.
        LeaseLost: another worker has taken the run over.
    """
    run_dir = Path(config.run_dir)
    record = Record.open(run_dir, config, lease)
    files = files_of(config.runtime)
    adapter = adapter_digest(run_dir)
    sets = {
        name: Predictions(run_dir, name, expected(test, files), adapter)
        for name, test in config.suite.tests.items()
    }
    open_sets = {name: one for name, one in sets.items() if not one.complete()}
    if not open_sets and record.finished("generate"):
        return
    with record.stage("generate"):
        peak = {}
        if open_sets:
            with record.phase("load_for_generation"):
                generator = Generator.of_run(config)
                if _of_other_weights(run_dir, generator):
                    open_sets = sets
                    _drop(run_dir, sets.values(), lease)
                _note(config, lease, generator, {})
            with record.phase("generate"):
                for one in open_sets.values():
                    _generate_set(config, lease, one, generator)
            peak = {"generate_bytes": generator.peak_memory()}
        for one in sets.values():
            with lease.guard():
                one.partial.unlink(missing_ok=True)
        record.update(data=files.used, generation=_summary(run_dir), peak_memory=peak)


def _summary(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "generation.json"
    return dict(read_json(path)) if path.exists() else {}


def _of_other_weights(run_dir: Path, generator: Generator) -> bool:
    """Whether the rows that are there come from other backbone weights: without an adapter, no row tells."""
    here = generator.how.weights_digest
    return _summary(run_dir).get("weights_digest", here) != here


def _drop(run_dir: Path, sets: Iterable[Predictions], lease: Lease) -> None:
    with lease.guard():
        for one in sets:
            one.final.unlink(missing_ok=True)
            one.partial.unlink(missing_ok=True)
        (run_dir / "generation.json").unlink()


def _generate_set(config: RunConfig, lease: Lease, one: Predictions, generator: Generator) -> None:
    """Generate what one test set lacks, batch by batch, and note how."""
    prompts = [
        encode(generator.tokenizer, prompt, bos=config.prompt.bos)["input_ids"]
        for prompt in one.wanted.prompts
    ]
    rows, todo = one.resume(batches_of([len(ids) for ids in prompts], config.decode.batch_size), lease)
    start, tokens, generator.splits = time.monotonic(), 0, 0
    bar = tqdm(
        total=len(prompts),
        initial=len(rows),
        desc=one.name,
        unit="example",
        disable=not config.runtime.progress,
    )
    with bar:
        for batch in todo:
            made = generator([prompts[index] for index in batch])
            new = {i: one.row(i, text, count) for i, (text, count) in zip(batch, made, strict=True)}
            append_lines(one.partial, new.values(), lease.guard)
            rows |= new
            tokens += sum(count for _, count in made)
            bar.update(len(batch))
            bar.set_postfix_str(f"{tokens / (time.monotonic() - start):.0f} tokens/s")
    one.finish(rows, lease)
    made_now = {
        "examples": sum(map(len, todo)),
        "tokens": tokens,
        "seconds": round(time.monotonic() - start, 3),
        "batches_halved": generator.splits,
    }
    earlier = _summary(Path(config.run_dir)).get("sets", {}).get(one.name, {})
    starts = earlier.get("starts", []) if earlier.get("adapter_digest") == one.adapter else []
    told = {
        "examples": len(rows),
        "prompt_tokens": sum(map(len, prompts)),
        "tokens": sum(row["n_tokens"] for row in rows.values()),
        "adapter_digest": one.adapter,
        "starts": [*starts, made_now],
    }
    _note(config, lease, generator, {one.name: told})


def _note(config: RunConfig, lease: Lease, generator: Generator, sets: dict[str, Any]) -> None:
    """Write `generation.json`: how responses are made; by test set its totals and what each start made."""
    run_dir = Path(config.run_dir)
    whole = {
        "batch_size": config.decode.batch_size,
        "order": ORDER,
        **asdict(generator.how),
        "sets": {**_summary(run_dir).get("sets", {}), **sets},
    }
    write_json(run_dir / "generation.json", whole, lease.guard)


@dataclass(frozen=True)
class How:
    """How responses are made, for the record."""

    device: str
    precision: str
    max_new_tokens: int
    merged: bool
    stop_tokens: list[int]
    weights_digest: str


class Generator:
    """A loaded model that answers batches of prompts greedily; calling it returns (text, tokens) of each."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        *,
        max_new_tokens: int,
        device: str = "cpu",
        precision: str = "fp32",
        merged: bool = False,
        weights_digest: str = "",
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        stop = neutralise(model, tokenizer, max_new_tokens)
        self.how = How(device, precision, max_new_tokens, merged, stop, weights_digest)
        self.splits = 0

    @classmethod
    def of_run(cls, config: RunConfig) -> Generator:
        """Load a run's backbone and adapter; raise `ConfigError` where they do not belong together."""
        import torch
        from hydra.utils import instantiate

        from dypam.adapter import check_backbone, check_files
        from dypam.backbone import load_backbone
        from dypam.precision import backbone_dtype
        from dypam.tuner.digest import weights_digest

        if config.runtime.threads:
            torch.set_num_threads(config.runtime.threads)
        device = pick_device(config.runtime.device)
        precision = decode_precision(config, device)
        method = instantiate(config.method)
        adapter = Path(config.run_dir) / "adapter"
        if method.trainable:
            check_files(adapter)
        model, tokenizer = load_backbone(
            config.backbone,
            dtype=backbone_dtype(precision),
            device=device,
            runtime=config.runtime,
            attn_implementation=config.train.attn_implementation,
        )
        digest = weights_digest(model)
        if method.trainable:
            check_backbone(digest, adapter)
        model = method.load(model, adapter)
        merged = config.decode.merge and method.trainable
        if merged:
            model = method.merge(model)
        return cls(
            model,
            tokenizer,
            max_new_tokens=config.decode.max_new_tokens,
            device=device,
            precision=precision,
            merged=merged,
            weights_digest=digest,
        )

    def __call__(self, prompts: list[list[int]]) -> list[tuple[str, int]]:
        """Answer one batch of token ids; where a GPU lacks memory for it, in two halves, and so on."""
        import torch

        try:
            return [self._read(ids) for ids in self._continue(prompts)]
        except torch.OutOfMemoryError:
            if len(prompts) == 1:
                raise
        torch.cuda.empty_cache()
        self.splits += 1
        half = len(prompts) // 2
        tqdm.write(f"Out of GPU memory with {len(prompts)} prompts at once; going on with {half}.")
        return self(prompts[:half]) + self(prompts[half:])

    def peak_memory(self) -> int:
        """Return the most memory in bytes that this process has held: the GPU's, or its resident size."""
        from dypam.machine import peak_memory

        return peak_memory(self.how.device)

    def _continue(self, prompts: list[list[int]]) -> list[list[int]]:
        import torch

        from dypam.precision import forward_context

        batch = collate([{"input_ids": ids} for ids in prompts], pad_id(self.tokenizer), side="left")
        batch = {name: tensor.to(self.how.device) for name, tensor in batch.items()}
        with torch.inference_mode(), forward_context(self.how.precision, self.how.device):
            made: torch.Tensor = self.model.generate(**batch)  # type: ignore[operator]
        return made[:, batch["input_ids"].shape[1] :].tolist()

    def _read(self, ids: list[int]) -> tuple[str, int]:
        """Return the text up to the first stop token, and the number of tokens made, that one included."""
        end = next((place for place, token in enumerate(ids) if token in self.how.stop_tokens), len(ids))
        text = self.tokenizer.decode(ids[:end], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text, min(end + 1, len(ids))


def decode_precision(config: RunConfig, device: str) -> str:
    """Return `fp32`, `bf16` or `bf16_autocast`; `auto` follows training under autocast, else the device."""
    from dypam.precision import resolve

    if config.decode.precision == "auto" and config.train.precision == "bf16_autocast":
        return "bf16_autocast"
    return resolve(config.decode.precision, device)


def neutralise(model: nn.Module, tokenizer: Any, max_new_tokens: int) -> list[int]:
    """Make `generate` plainly greedy, whatever a checkpoint ships (sampling, …); return the stop tokens.

    The checkpoint's own stop tokens are kept beside the tokenizer's EOS, which training supervises.
    """
    own: Any = model.generation_config
    shipped = own.eos_token_id if isinstance(own.eos_token_id, list) else [own.eos_token_id]
    stop = sorted({token for token in (*shipped, tokenizer.eos_token_id) if token is not None})
    set_greedy(model, stop, pad=pad_id(tokenizer), max_new_tokens=max_new_tokens)
    return stop


def set_greedy(model: nn.Module, stop: list[int], *, pad: int, max_new_tokens: int) -> None:
    """Make `generate` plainly greedy, on an adapted model and what it wraps; it ends at tokens of `stop`."""
    from transformers import GenerationConfig

    own: Any = model.generation_config
    greedy = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=stop or None,
        pad_token_id=pad,
        bos_token_id=own.bos_token_id,
    )
    greedy.cache_implementation = own.cache_implementation
    greedy.disable_compile = True
    for module in (
        model,
        getattr(model, "base_model", model),
        getattr(model, "get_base_model", lambda: model)(),
    ):
        if hasattr(module, "generation_config"):
            module.generation_config = greedy
