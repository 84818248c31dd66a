"""RoSA's equations in NumPy, float64, a token, head and dimension at a time; imports nothing of ours."""

import numpy as np


def silu(x):
    return x / (1 + np.exp(-x))


def slow_dimensions(d_h, r_low):
    """The last d_h · r_low / 2 dimensions of each half of a head, first half first."""
    half, n = d_h // 2, round(d_h * r_low / 2)
    return list(range(half - n, half)) + list(range(d_h - n, d_h))


def enhance(states, signal, alpha, r_low):
    """Write z + z ⊙ α S in the place of z. states [heads, T, d_h], signal [T, heads · d_low]."""
    heads, T, d_h = states.shape
    slow = slow_dimensions(d_h, r_low)
    out = states.copy()
    for head in range(heads):
        for t in range(T):
            for j, dimension in enumerate(slow):
                z = states[head, t, dimension]
                out[head, t, dimension] = z + z * alpha * signal[t, head * len(slow) + j]
    return out


def roae(h, q, k, p, alpha, r_low):
    """Return rotated q [H, T, d_h] and k [K, T, d_h] enhanced by the signal of h [T, d]."""
    signal = silu(h @ p["down"] @ p["up"])
    key_signal = signal @ p["gqa_down"] @ p["gqa_up"] if "gqa_down" in p else signal
    return enhance(q, signal, alpha, r_low), enhance(k, key_signal, alpha, r_low)


def score(gradients):
    """A layer's score from its two norms' gradients."""
    return np.sqrt(sum(np.sum(np.asarray(g) ** 2) for g in gradients))
