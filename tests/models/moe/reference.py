"""LongCat-Flash in NumPy float64, token by token and expert by expert, from the equations."""

import numpy as np


def _norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def _silu(x):
    return x / (1 + np.exp(-x))


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _rotation(position, width, theta):
    """The matrix that turns neighbouring pairs of a vector by position * theta^(-2i / width)."""
    matrix = np.zeros((width, width))
    for i in range(width // 2):
        angle = position * theta ** (-2 * i / width)
        c, s = np.cos(angle), np.sin(angle)
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[c, -s], [s, c]]
    return matrix


def attention(x, w, config):
    """One attention over the tokens of one sequence, positions 0, 1, ..."""
    num_tokens, c = len(x), config
    out = np.zeros_like(x)
    compressed = _norm(x @ w["query_down"], w["query_norm"], c.lora_norm_eps)
    both = x @ w["latent_down"]
    latent, rope_key = both[:, : c.kv_lora_rank], both[:, c.kv_lora_rank :]
    latent = _norm(latent, w["latent_norm"], c.lora_norm_eps)
    latent = latent * np.sqrt(c.hidden_size / c.kv_lora_rank)
    turn = [_rotation(t, c.qk_rope_head_dim, c.rope_theta) for t in range(num_tokens)]
    for n in range(c.num_heads):
        query = compressed @ w["query_up"][:, n] * np.sqrt(c.hidden_size / c.q_lora_rank)
        key_value = latent @ w["latent_up"][:, n]
        nope = c.qk_nope_head_dim
        for t in range(num_tokens):
            score = np.array(
                [
                    query[t, :nope] @ key_value[s, :nope]
                    + (turn[t] @ query[t, nope:]) @ (turn[s] @ rope_key[s])
                    for s in range(t + 1)
                ]
            )
            weight = _softmax(score / np.sqrt(nope + c.qk_rope_head_dim))
            out[t] += weight @ key_value[: t + 1, nope:] @ w["out"][n]
    return out


def mixture(u, router, experts, config, forced=None):
    """The mixture of experts and how many tokens chose each target.

    `forced` [T, K] holds choices to follow; rows with a negative entry are chosen freely.
    """
    out, load = np.zeros_like(u), np.zeros(config.num_targets, int)
    for t, x in enumerate(u):
        score = _softmax(x @ router["kernel"]) + router.get("score_shift", 0.0)
        chosen = np.argsort(-(score + router["bias"]), kind="stable")[: config.num_chosen]
        if forced is not None and min(forced[t]) >= 0:
            chosen = forced[t]
        for target in chosen:
            load[target] += 1
            gate = config.gate_scale * score[target]
            if target >= config.num_experts:
                out[t] += gate * x
            else:
                first, second = (
                    x @ experts["gate_up"][target, :, 0],
                    x @ experts["gate_up"][target, :, 1],
                )
                out[t] += gate * (_silu(first) * second) @ experts["down"][target]
    return out, load


def ffn(x, w):
    return (_silu(x @ w["gate"]) * (x @ w["up"])) @ w["down"]


def model(weights, tokens, config, forced=None):
    """Logits [T, V] of one sequence and loads [L, A]; `forced` [L, T, K], see `mixture`."""
    hidden, loads = states(weights, tokens, config, forced)
    return hidden @ np.asarray(weights["head"], np.float64), loads


def states(weights, tokens, config, forced=None):
    """States [T, D] of one sequence after the final norm and loads [L, A]."""
    weights = _map(lambda a: np.asarray(a, np.float64), weights)
    x, loads, eps = weights["embedding"][tokens], [], config.rms_norm_eps
    for index in range(config.num_layers):
        w = _map(lambda a, index=index: a[index], weights["layers"])
        h1 = x + attention(_norm(x, w["attention_norm_0"], eps), w["attention_0"], config)
        u = _norm(h1, w["ffn_norm_0"], eps)
        wanted = None if forced is None else forced[index]
        m, load = mixture(u, w["router"], w["experts"], config, wanted)
        h2 = h1 + ffn(u, w["ffn_0"])
        h3 = h2 + attention(_norm(h2, w["attention_norm_1"], eps), w["attention_1"], config)
        x = h3 + ffn(_norm(h3, w["ffn_norm_1"], eps), w["ffn_1"]) + m
        loads.append(load)
    return _norm(x, weights["final_norm"], eps), np.array(loads)


def draft(weights, hidden, next_tokens, config):
    """Logits [T, V] of the token after the next one, from states and next tokens."""
    weights = _map(lambda a: np.asarray(a, np.float64), weights)
    w, eps = weights["mtp"], config.rms_norm_eps
    embedding = _norm(weights["embedding"][next_tokens], w["embedding_norm"], eps)
    half = config.hidden_size
    x = embedding @ w["projection"][:half]
    x = x + _norm(hidden, w["hidden_norm"], eps) @ w["projection"][half:]
    only = _map(lambda a: a[0], {"attention": w["attention"], "ffn": w["ffn"]})
    x = x + attention(_norm(x, w["attention_norm"], eps), only["attention"], config)
    x = x + ffn(_norm(x, w["ffn_norm"], eps), only["ffn"])
    return _norm(x, w["final_norm"], eps) @ weights["head"]


def _map(function, tree):
    if isinstance(tree, dict):
        return {key: _map(function, value) for key, value in tree.items()}
    return function(tree)
