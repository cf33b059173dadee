"""The methods of fusion written a second time: NumPy, float64, entry by entry where it is short."""

import numpy as np


def delta(base, expert):
    return expert.astype(np.float64) - base.astype(np.float64)


def linear(experts, weights):
    return np.average([e.astype(np.float64) for e in experts], axis=0, weights=weights)


def task_arithmetic(base, experts, weights, scale=1.0, normalise=False):
    return combined(base, [delta(base, e) for e in experts], weights, "sum", scale, normalise)


def trim(d, num_kept, first=0):
    """The `num_kept` largest after the `first` largest."""
    order = np.argsort(-np.abs(d), axis=None, kind="stable")
    kept = np.zeros(d.size, bool)
    kept[order[first : first + num_kept]] = True
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
    terms = [trim(delta(base, e), max(1, int(density * base.size))) for e in experts]
    return combined(base, terms, weights, "ties", scale, normalise)


def rescaled(d, mask, keep_rate, rescale):
    kept = np.where(mask, d, 0.0)
    if rescale == "inverse":
        return kept / keep_rate
    after = np.abs(kept).sum()
    return kept * (np.abs(d).sum() / after) if after else kept


def combined(base, terms, weights, combine, scale, normalise):
    if combine == "ties":
        return base.astype(np.float64) + elected_mean(terms, weights, scale, normalise)
    step = sum(w * t for w, t in zip(weights, terms, strict=True))
    return base.astype(np.float64) + scale * step / (sum(weights) if normalise else 1.0)


def dare(base, experts, masks, weights, keep_rate, rescale, combine, scale=1.0, normalise=False):
    terms = [
        rescaled(delta(base, e), m, keep_rate, rescale) for e, m in zip(experts, masks, strict=True)
    ]
    return combined(base, terms, weights, combine, scale, normalise)


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


def della_rates(d, keep_rate, spread):
    """Rising with the rank of |d| along the second axis; a vector is one row."""
    rows = np.abs(np.moveaxis(d, min(1, d.ndim - 1), -1)).astype(np.float64)
    rates = np.empty(rows.shape)
    for place in np.ndindex(rows.shape[:-1]):
        for rank, column in enumerate(sorted(range(rows.shape[-1]), key=lambda c: rows[place][c])):
            rates[(*place, column)] = (
                keep_rate - spread + 2 * spread * rank / (len(rows[place]) - 1)
            )
    return np.moveaxis(rates, -1, min(1, d.ndim - 1))


def della(
    base, experts, masks, weights, keep_rate, spread, rescale, combine, scale=1.0, normalise=True
):
    terms = []
    for expert, mask in zip(experts, masks, strict=True):
        d = delta(base, expert)
        if rescale == "l1":
            terms.append(rescaled(d, mask, None, "l1"))
        else:
            terms.append(np.where(mask, d / della_rates(d, keep_rate, spread), 0.0))
    return combined(base, terms, weights, combine, scale, normalise)


def crumbs(d, density, outliers):
    """Drops the int(outliers n) largest, then keeps the int(density n) largest of the rest."""
    num_kept = int(density * d.size)
    return trim(d, num_kept, min(int(outliers * d.size), d.size - num_kept))


def breadcrumbs(base, experts, weights, density, outliers, combine, scale=1.0, normalise=False):
    terms = [crumbs(delta(base, e), density, outliers) for e in experts]
    return combined(base, terms, weights, combine, scale, normalise)


def ram_boosts(deltas, threshold, boost, most):
    """One per expert, from all the entries given."""
    shared, own = [0] * len(deltas), [0] * len(deltas)
    for values in zip(*(d.ravel() for d in deltas), strict=True):
        moved = [i for i, v in enumerate(values) if abs(v) > threshold]
        for i in moved:
            (shared if len(moved) > 1 else own)[i] += 1
    return [1 + boost * min(s / max(o, 1), most) for s, o in zip(shared, own, strict=True)]


def ram(base, experts, threshold, boosts):
    deltas = [delta(base, e) for e in experts]
    result = base.astype(np.float64)
    for place in np.ndindex(base.shape):
        moved = [i for i, d in enumerate(deltas) if abs(d[place]) > threshold]
        if len(moved) == 1:
            result[place] += boosts[moved[0]] * deltas[moved[0]][place]
        elif moved:
            result[place] += np.mean([deltas[i][place] for i in moved])
    return result


def slerp(first, second, t):
    """By the angle between unit vectors and an orthonormal frame of their plane."""
    a, b = first.astype(np.float64).ravel(), second.astype(np.float64).ravel()
    u, v = a / np.linalg.norm(a), b / np.linalg.norm(b)
    angle = 2 * np.arctan2(np.linalg.norm(u - v), np.linalg.norm(u + v))
    across = v - (u @ v) * u
    across /= np.linalg.norm(across)
    # The point of the unit circle at t, taken apart again along u and v.
    point = np.array([np.cos(t * angle), np.sin(t * angle)])
    frame = np.array([[1.0, np.cos(angle)], [0.0, np.sin(angle)]])
    from_u, from_v = np.linalg.solve(frame, point)
    return (from_u * a + from_v * b).reshape(first.shape)


def karcher(models, weights, num_steps=200):
    """Gradient descent on the sphere until it stands still, times the mean norm."""
    share = np.asarray(weights, float) / np.sum(weights)
    flat = [m.astype(np.float64).ravel() for m in models]
    units = [x / np.linalg.norm(x) for x in flat]
    mean = units[0]
    for _ in range(num_steps):
        step = np.zeros_like(mean)
        for w, unit in zip(share, units, strict=True):
            across = unit - (mean @ unit) * mean
            if length := np.linalg.norm(across):
                step += 0.5 * w * np.arctan2(length, mean @ unit) * across / length
        mean = mean + step
        mean /= np.linalg.norm(mean)
    size = sum(w * np.linalg.norm(x) for w, x in zip(share, flat, strict=True))
    return (size * mean).reshape(models[0].shape)


def fisher(models, importances, weights, floor):
    shares = [w * (f.astype(np.float64) + floor) for w, f in zip(weights, importances, strict=True)]
    return np.average([m.astype(np.float64) for m in models], axis=0, weights=shares)


def fisher_deltas(base, experts, importances, weights, floor):
    shares = np.stack([f.astype(np.float64) + floor for f in importances])
    shares = shares / shares.sum(axis=0)
    terms = [w * delta(base, e) for w, e in zip(weights, experts, strict=True)]
    return base.astype(np.float64) + len(experts) * np.sum(shares * np.stack(terms), axis=0)


def smallest_overall(deltas, density):
    """The smallest of the int(density n) largest |d| over a whole model."""
    sizes = np.sort(np.concatenate([np.abs(d).ravel() for d in deltas]))[::-1]
    return sizes[max(1, int(density * len(sizes))) - 1]
