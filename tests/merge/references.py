"""The methods of fusion written a second time: NumPy, float64, entry by entry where it is short."""

import numpy as np


def delta(base, expert):
    return expert.astype(np.float64) - base.astype(np.float64)


def linear(experts, weights):
    return np.average([e.astype(np.float64) for e in experts], axis=0, weights=weights)


def task_arithmetic(base, experts, weights, scale=1.0, normalise=False):
    stack = np.stack([delta(base, e) for e in experts])
    step = np.tensordot(np.asarray(weights, float), stack, axes=1)
    return base.astype(np.float64) + scale * step / (np.sum(weights) if normalise else 1.0)


def trim(d, density):
    order = np.argsort(-np.abs(d), axis=None, kind="stable")
    kept = np.zeros(d.size, bool)
    kept[order[: max(1, int(density * d.size))]] = True
    return np.where(kept.reshape(d.shape), d, 0.0)


def elected_mean(terms, weights, scale=1.0, normalise=True, plain=False):
    """Entry by entry: elect a sign, add what has it, divide by its weight."""
    result = np.zeros(terms[0].shape)
    for place in np.ndindex(result.shape):
        values = [float(t[place]) for t in terms]
        votes = values if plain else [w * v for w, v in zip(weights, values, strict=True)]
        sign = 1 if sum(votes) >= 0 else -1
        agree = [v * sign > 0 for v in votes]
        total = sum(w * v for w, v, yes in zip(weights, values, agree, strict=True) if yes)
        weight = sum(w for w, yes in zip(weights, agree, strict=True) if yes)
        result[place] = scale * total / (weight if normalise and weight else 1.0)
    return result


def ties(base, experts, weights, density, scale=1.0, normalise=True):
    terms = [trim(delta(base, e), density) for e in experts]
    return base.astype(np.float64) + elected_mean(terms, weights, scale, normalise)


def rescaled(d, mask, keep_rate, rescale):
    kept = np.where(mask, d, 0.0)
    if rescale == "inverse":
        return kept / keep_rate
    after = np.abs(kept).sum()
    return kept * (np.abs(d).sum() / after) if after else kept


def dare(base, experts, masks, weights, keep_rate, rescale, combine, scale=1.0, normalise=False):
    terms = [
        rescaled(delta(base, e), m, keep_rate, rescale) for e, m in zip(experts, masks, strict=True)
    ]
    if combine == "ties":
        return base.astype(np.float64) + elected_mean(terms, weights, scale, normalise)
    step = sum(w * t for w, t in zip(weights, terms, strict=True))
    return base.astype(np.float64) + scale * step / (sum(weights) if normalise else 1.0)


def sce(base, experts, select_rate=1.0, select="deltas"):
    deltas = [delta(base, e) for e in experts]
    variance = np.var(np.stack(deltas), axis=0)
    chosen = np.ones(base.shape, bool)
    if select_rate < 1:
        chosen = np.zeros(base.size, bool)
        count = int(np.count_nonzero(variance) * select_rate)
        chosen[np.argsort(-variance, axis=None)[:count]] = True
        chosen = chosen.reshape(base.shape)
    selected = [np.where(chosen, d, 0.0) for d in deltas]
    energy = np.array([np.mean(d**2) for d in selected])
    weights = energy / energy.sum() if energy.sum() else np.full(len(deltas), 1 / len(deltas))
    terms = selected if select == "deltas" else deltas
    return base.astype(np.float64) + elected_mean(terms, list(weights), plain=True)


def longcat(
    base, experts, masks, weights, factors, *, scale, keep_rate, rescale, erase, zero_sum, combine
):
    weights = np.asarray(weights, float) / np.sum(weights)
    terms = []
    for expert, mask, factor in zip(experts, masks, factors, strict=True):
        d = factor * delta(base, expert)
        terms.append(d if mask is None else rescaled(d, mask, keep_rate, rescale))
    result = np.zeros(base.shape)
    for place in np.ndindex(base.shape):
        values = [float(t[place]) for t in terms]
        total = sum(w * v for w, v in zip(weights, values, strict=True))
        sign = np.sign(total) if total or zero_sum == "drop" else 1.0
        agree = [not erase or v * sign > 0 for v in values]
        result[place] = sum(w * v for w, v, a in zip(weights, values, agree, strict=True) if a)
        if combine == "disjoint_mean":
            result[place] /= sum(w for w, a in zip(weights, agree, strict=True) if a) or 1.0
    return base.astype(np.float64) + scale * result
