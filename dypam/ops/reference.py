"""DyPAM's equations (6, 8, 11–14) as pure functions; what every faster form is tested against.

Shapes: h hidden states [batch, tokens, d]; A [d, r]; B [r, heads · d_e]; E [d_h/2, d_e]; bias broadcastable
to [heads, d_h/2]; scores and factors [batch, tokens, heads, d_h/2], or [heads, d_h/2] where nothing depends
on h.
"""

from __future__ import annotations

import torch


def features(hidden: torch.Tensor, A: torch.Tensor, B: torch.Tensor, heads: int) -> torch.Tensor:
    """Return m = h A B, reshaped to heads: [batch, tokens, heads, d_e] (Eq. 6)."""
    return (hidden @ A @ B).unflatten(-1, (heads, -1))


def group_mean(m: torch.Tensor, key_heads: int) -> torch.Tensor:
    """Return the mean of each key head's group of query heads' features: [batch, tokens, K, d_e]."""
    return m.unflatten(2, (key_heads, -1)).mean(3)


def scores(m: torch.Tensor, E: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return g = E m + bias (Eqs. 8, 11, 12)."""
    return m @ E.mT + bias


def factors(g: torch.Tensor, alpha: float, normalize: str = "sigmoid") -> torch.Tensor:
    """Return s: `sigmoid` 1 + α (σ(g) − 0.5) (Eq. 13); `raw_centered` 1 + α g; `raw` g itself."""
    if normalize == "raw":
        return g
    return 1 + alpha * (g if normalize == "raw_centered" else g.sigmoid() - 0.5)


def scale_pairs(states: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """Return s ⊙ states [..., d_h], both members of a RoPE pair by the same s [..., d_h/2] (Eq. 14).

    The product is taken in the wider of both dtypes and rounded to that of `states`.
    """
    return (states * torch.cat((s, s), dim=-1)).to(states.dtype)


def modulate(
    hidden: torch.Tensor,
    states: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    E: torch.Tensor,
    bias: torch.Tensor,
    alpha: float,
    normalize: str = "sigmoid",
) -> torch.Tensor:
    """Return the modulated query or key [batch, heads, tokens, d_h] of a layer with its own projection."""
    g = scores(features(hidden, A, B, states.shape[1]), E, bias)
    return scale_pairs(states, factors(g, alpha, normalize).transpose(1, 2))
