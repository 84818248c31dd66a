"""DyPAM's equations in NumPy, float64, one token, head and pair at a time; imports nothing of the project."""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def features(h, A, B, heads):
    """Eq. 6: m_t = h_t A B, cut into heads. h [T, d] → [T, heads, d_e]."""
    m = h @ A @ B
    return m.reshape(len(h), heads, -1)


def shared_key_features(m, key_heads):
    """Features of a key head: the mean over its group of query heads."""
    group = m.shape[1] // key_heads
    return np.stack([m[:, k * group : (k + 1) * group].mean(axis=1) for k in range(key_heads)], axis=1)


def factors(m, E, head_bias, layer_bias, alpha, normalize):
    """Eqs. 8 and 11–13. m [T, heads, d_e] → s [T, heads, d_h/2]."""
    T, heads, _ = m.shape
    pairs = len(layer_bias)
    s = np.empty((T, heads, pairs))
    for t in range(T):
        for head in range(heads):
            for i in range(pairs):
                g = E[i] @ m[t, head] + head_bias[head, i] + layer_bias[i]
                if normalize == "sigmoid":
                    s[t, head, i] = 1 + alpha * (sigmoid(g) - 0.5)
                elif normalize == "raw_centered":
                    s[t, head, i] = 1 + alpha * g
                else:
                    s[t, head, i] = g
    return s


def scale(states, s):
    """Eq. 14: both members of pair i, which are i and i + d_h/2, times s_i. states [heads, T, d_h]."""
    heads, T, d_h = states.shape
    out = np.empty_like(states)
    for head in range(heads):
        for t in range(T):
            for i in range(d_h // 2):
                out[head, t, i] = states[head, t, i] * s[t, head, i]
                out[head, t, i + d_h // 2] = states[head, t, i + d_h // 2] * s[t, head, i]
    return out


def modulate(h, q, k, p, alpha, normalize="sigmoid", projection="separate"):
    """Return (q̂, k̂) for one sequence: h [T, d], q [H, T, d_h], k [K, T, d_h], p the parameters by name."""
    m_q = features(h, p["A_Q"], p["B_Q"], len(q))
    if projection == "separate":
        m_k = features(h, p["A_K"], p["B_K"], len(k))
    else:
        m_k = shared_key_features(m_q, len(k))
    scaled = []
    for side, m, states in (("Q", m_q, q), ("K", m_k, k)):
        s = factors(m, p[f"E_{side}"], p[f"head_bias_{side}"], p[f"layer_bias_{side}"], alpha, normalize)
        scaled.append(scale(states, s))
    return tuple(scaled)


def rotate(states, positions, theta=10000.0):
    """RoPE, half-split: pair (i, i + d_h/2) turned by position · theta^(−2i/d_h). states [heads, T, d_h]."""
    d_h = states.shape[-1]
    out = np.empty_like(states)
    for i in range(d_h // 2):
        angle = np.asarray(positions) * theta ** (-2 * i / d_h)
        a, b = states[:, :, i], states[:, :, i + d_h // 2]
        out[:, :, i] = a * np.cos(angle) - b * np.sin(angle)
        out[:, :, i + d_h // 2] = a * np.sin(angle) + b * np.cos(angle)
    return out
