"""The folded form: E m is linear in h A, so one matrix C = B Eᵀ per head replaces B and E.

The same function as `ops.reference` up to rounding; r · d_h/2 multiplications a head and token instead of
r · d_e + d_e · d_h/2.
"""

from __future__ import annotations

import torch


def fold(B: torch.Tensor, E: torch.Tensor) -> torch.Tensor:
    """Return C [r, heads · d_h/2] from B [r, heads · d_e] and E [d_h/2, d_e]."""
    pairs, d_e = E.shape
    heads = B.shape[1] // d_e
    return (B.unflatten(1, (heads, d_e)) @ E.mT).reshape(B.shape[0], heads * pairs)


def group_mean(B: torch.Tensor, heads: int, key_heads: int) -> torch.Tensor:
    """Return the mean of B [r, H · d_e] over each key head's group of query heads: [r, K · d_e]."""
    return B.unflatten(1, (key_heads, heads // key_heads, -1)).mean(2).flatten(1)


def scores(hidden: torch.Tensor, A: torch.Tensor, C: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return g = h A C + bias: [batch, tokens, heads, d_h/2]; bias [heads, d_h/2] or [d_h/2]."""
    return (hidden @ A @ C).unflatten(-1, (-1, bias.shape[-1])) + bias
