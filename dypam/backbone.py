"""Backbones: load a frozen pretrained language model, or its architecture alone without weights.

Weights are read from safetensors only, and code of a checkpoint's author is never run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dypam.config import Backbone, ConfigError, Runtime

if TYPE_CHECKING:
    import torch
    from torch import nn


def location(backbone: Backbone, runtime: Runtime) -> str:
    """Return the local directory or the hub's name that the backbone is loaded from.

    A converted backbone lies in `<cache_dir>/backbones/<path>`, unless `path` itself is a directory.

    Raises:
        ConfigError: a converted backbone that is not made yet, or a local path where nothing is.
    """
    if Path(backbone.path).is_dir():
        return backbone.path
    if backbone.convert is not None:
        made = Path(runtime.cache_dir) / "backbones" / backbone.path
        if not (made / "config.json").is_file():
            raise ConfigError(
                f"backbone {backbone.name}: {made} is not made yet; "
                f"run `python scripts/convert.py backbone={backbone.name}` once."
            )
        return str(made)
    if backbone.path.startswith((".", "/", "~")):
        raise ConfigError(f"backbone.path={backbone.path}: there is no such directory; correct the path.")
    return backbone.path


def load_backbone(
    backbone: Backbone,
    *,
    dtype: torch.dtype,
    device: str,
    runtime: Runtime,
    attn_implementation: str = "sdpa",
) -> tuple[nn.Module, Any]:
    """Return the model (frozen, in evaluation mode, on `device`) and its tokenizer (with a pad token).

    Parameters have `dtype`; rotary buffers stay FP32.  Of a vision-language checkpoint it is the text model.
    `sdpa` becomes `eager` for a family that has no SDPA, or whose soft cap on attention SDPA would leave out.

    Raises:
        ConfigError: one sentence with the fix, whatever keeps the checkpoint from being loaded.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    where, source = location(backbone, runtime), _source(backbone, runtime)
    try:
        config = AutoConfig.from_pretrained(where, **source)
        model, report = AutoModelForCausalLM.from_pretrained(
            where,
            config=config,
            use_safetensors=True,
            attn_implementation=_attention(attn_implementation, config),
            output_loading_info=True,
            **{_dtype_keyword(): dtype},
            **source,
        )
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(_explain(error, backbone, where)) from error
    if missing := sorted(report["missing_keys"]):
        raise ConfigError(
            f"backbone {backbone.name}: {where} lacks {len(missing)} weights ({missing[0]}, …); "
            "use a whole checkpoint of this architecture."
        )
    tokenizer = load_tokenizer(backbone, runtime)
    model = _contiguous_head(_text_model(model).to(device).eval().requires_grad_(False))
    model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def random_backbone(
    backbone: Backbone, *, seed: int, dtype: torch.dtype, device: str, attn_implementation: str = "sdpa"
) -> nn.Module:
    """Return the architecture with weights drawn from a seed, frozen: nothing is fetched, nothing learned."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(**backbone.architecture)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=_attention(attn_implementation, config), **{_dtype_keyword(): dtype}
        )
    return _contiguous_head(model.eval().requires_grad_(False))


def load_tokenizer(backbone: Backbone, runtime: Runtime) -> Any:
    """Return the backbone's tokenizer, with a pad token; raise `ConfigError` as `load_backbone` does."""
    from transformers import AutoTokenizer

    where = location(backbone, runtime)
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, **_source(backbone, runtime))
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(_explain(error, backbone, where)) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _source(backbone: Backbone, runtime: Runtime) -> dict[str, Any]:
    return {
        "revision": backbone.revision,
        "trust_remote_code": False,
        "local_files_only": runtime.offline,
    }


def check_architecture(model: nn.Module, backbone: Backbone) -> None:
    """Raise `ConfigError` unless the YAML's numbers give a model of the size of the one loaded.

    Parameters are counted, and runs planned, from the YAML alone; a wrong one would go into every record.
    """
    loaded, said = (sum(p.numel() for p in one.parameters()) for one in (model, meta_model(backbone)))
    if loaded != said:
        raise ConfigError(
            f"backbone {backbone.name}: its checkpoint has {loaded:,} parameters, and {said:,} by "
            "backbone.architecture; put the numbers of the checkpoint's config.json there."
        )


def _contiguous_head(model: nn.Module) -> nn.Module:
    """Let the output embedding copy what it is given if that is a slice.

    `generate` gives it the last token of every prompt, a slice of [batch, tokens, d]; torch's linear then
    multiplies batch by batch by as many copies of the vocabulary's matrix, 33 GB for 100 prompts of Gemma 3.
    """
    model.get_output_embeddings().register_forward_pre_hook(_contiguous)  # type: ignore[operator]
    return model


def _contiguous(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.contiguous() for tensor in inputs)


def checkpoint_activations(model: nn.Module) -> None:
    """Let the layers of a (perhaps adapted) model compute their activations again in the backward pass."""
    enable = getattr(model, "activation_checkpointing_enable", None)  # its name in Transformers 5
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})


def meta_model(backbone: Backbone, whole: bool = False) -> nn.Module:
    """Return the architecture on the meta device, from the YAML's numbers alone: no weights, no hub.

    Args:
        backbone: its `architecture` is that of the text model.
        whole: the whole published checkpoint instead (a vision-language model), where there is one.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    entire = backbone.whole_checkpoint if whole else None
    config = AutoConfig.for_model(**(entire or backbone.architecture))
    kind = AutoModelForImageTextToText if entire else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config)
    model.tie_weights()
    return model.eval().requires_grad_(False)


def _dtype_keyword() -> str:
    import transformers

    return "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"


def _attention(wanted: str, config: Any) -> str | None:
    """Return what to ask Transformers for; None is its default, SDPA where the family has it."""
    if wanted != "sdpa":
        return wanted
    # Transformers 4.51 gives Gemma 2 SDPA and silently drops its soft cap.
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None
    return "eager" if capped else None


def _text_model(model: nn.Module) -> nn.Module:
    """Return the causal language model inside a vision-language one; any other model as it is."""
    import torch
    from transformers import AutoModelForCausalLM

    if getattr(model.config, "text_config", None) is None:
        return model
    inner = getattr(model, "language_model", None)
    if inner is not None and hasattr(inner, "lm_head"):  # Transformers 4.51
        return inner
    with torch.device("meta"):
        text = AutoModelForCausalLM.from_config(model.config.get_text_config())
    text.model, text.lm_head = model.model.language_model, model.lm_head
    return text


def _explain(error: Exception, backbone: Backbone, where: str) -> str:
    """Return one sentence with the fix for what Transformers raised."""
    chain: list[str] = []
    link: BaseException | None = error
    while link is not None and len(chain) < 9:
        chain.append(f"{type(link).__name__} {link}")
        link = link.__cause__ or link.__context__
    text, head = " ".join(chain).lower(), f"backbone {backbone.name}:"
    if "gated" in text or "401" in text or "403" in text:
        return (
            f"{head} {where} needs its licence accepted; accept it at https://huggingface.co/{where}, "
            "then run `hf auth login` or set HF_TOKEN."
        )
    if "revisionnotfound" in text or "not a valid git identifier" in text:
        return f"{head} revision {backbone.revision} of {where} does not exist; correct backbone.revision."
    if "repositorynotfound" in text or "404" in text:
        return f"{head} the hub has no model {where}; correct backbone.path or give a local directory."
    if not Path(where).is_dir() and any(
        word in text for word in ("connect", "offline", "localentrynotfound", "resolve", "cached files")
    ):
        return (
            f"{head} {where} is not in the local cache ({_hub_cache()}) and the hub cannot be reached; "
            "connect, copy the model into the cache, or set backbone.path to a local directory."
        )
    if "safetensors" in text and "file named" in text:
        return (
            f"{head} {where} has no safetensors weights, and no others are loaded; "
            "convert it (huggingface.co/spaces/safetensors/convert) and set backbone.path."
        )
    if "flash" in text and "attn" in text:
        return f"{head} flash attention cannot be used here; set train.attn_implementation=sdpa."
    return (
        f"{head} {where} cannot be loaded ({str(error).splitlines()[0].rstrip('.')}); check the checkpoint."
    )


def _hub_cache() -> str:
    from huggingface_hub.constants import HF_HUB_CACHE

    return os.path.expanduser(HF_HUB_CACHE)
