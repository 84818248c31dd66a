"""Tiny random models of every family, a byte tokenizer, loadable directories; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

FAMILIES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3_text")
"""The families that rotary tuners adapt."""

WINDOW = 8
SPECIAL = ("<pad>", "<eos>", "<bos>")
VOCABULARY = len(SPECIAL) + 256
V5 = int(transformers.__version__.split(".")[0]) >= 5

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "tie_word_embeddings": True,
}
_LAYER_TYPES = (
    {"layer_types": ["sliding_attention", "full_attention"]} if V5 else {"sliding_window_pattern": 2}
)
_SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
_SPECIFIC: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"head_dim": None, "hidden_size": 64},
    "qwen3": {},
    "gemma2": {"sliding_window": WINDOW, "query_pre_attn_scalar": 16},
    "gemma3_text": {"sliding_window": WINDOW, "query_pre_attn_scalar": 16, **_LAYER_TYPES},
    "bloom": {"n_head": 4, "n_layer": 2},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
}


def tiny_config(family: str, **changes: Any) -> Any:
    """Return the Transformers config: 2 layers, 4 query and 2 key heads of 16, Gemma with a sliding layer."""
    if family == "gemma3":
        text = tiny_config("gemma3_text", **changes).to_dict()
        return transformers.Gemma3Config(
            text_config=text, vision_config=_SIGLIP, mm_tokens_per_image=4, tie_word_embeddings=True
        )
    fields = {**_COMMON, **_SPECIFIC[family], **changes}
    return transformers.AutoConfig.for_model(family, **{k: v for k, v in fields.items() if v is not None})


def tiny(
    family: str = "llama",
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    attn_implementation: str | None = None,
    **changes: Any,
) -> PreTrainedModel:
    """Return a fresh random causal language model in evaluation mode; the same weights for the same seed.

    `gemma3` is the vision-language model round `gemma3_text`.  Norms and biases are random too, so that none
    of them is the identity.
    """
    config = tiny_config(family, **changes)
    if attn_implementation is None and family == "gemma2":
        attn_implementation = "eager"  # Transformers 4 leaves the soft cap out of SDPA
    if attn_implementation is not None:
        config._attn_implementation = attn_implementation
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if family == "gemma3":
            model = transformers.Gemma3ForConditionalGeneration(config)
        else:
            model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return _cast(model, dtype).eval()


def _cast(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Cast parameters only: rotary buffers stay FP32, as `from_pretrained` leaves them."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    setattr(model.config, "dtype" if V5 else "torch_dtype", dtype)
    return model


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer: `<pad>`, `<eos>`, `<bos>`, one token a byte; it adds no specials."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    pad, eos, bos = SPECIAL
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=pad, eos_token=eos, bos_token=bos)


def new_cache(model: Any, batch: int, length: int) -> Any:
    """Return the empty cache that `generate` would use."""
    if V5:
        return transformers.DynamicCache(config=model.config)
    if model.config.model_type.startswith("gemma"):
        return transformers.HybridCache(model.config, batch, max_cache_len=length, dtype=model.dtype)
    return transformers.DynamicCache()


def cache_arguments(cache: Any, start: int, length: int) -> dict[str, Any]:
    """Return a forward's arguments for `length` further tokens after `start` cached ones, as `generate`'s."""
    if V5:
        return {"cache": cache, "use_cache": True}
    return {
        "past_key_values": cache,
        "use_cache": True,
        "cache_position": torch.arange(start, start + length),
    }


def save_tiny(directory: Path, family: str = "llama", *, seed: int = 0, **changes: Any) -> Path:
    """Write model (safetensors) and tokenizer into `directory`, as a hub checkpoint is laid out."""
    tiny(family, seed=seed, **changes).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


def tokens(batch: int = 2, length: int = 12, seed: int = 0) -> torch.Tensor:
    """Return random byte tokens [batch, length], no specials."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(len(SPECIAL), VOCABULARY, (batch, length), generator=generator)
