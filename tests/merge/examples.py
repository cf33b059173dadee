"""Small weights for the tests of fusion: layers and experts stacked, and the same held apart."""

import numpy as np

from loong_jax import merge

METHODS = {
    "longcat": merge.LongcatFusion(keep_rate=0.6),
    "longcat_l1": merge.LongcatFusion(keep_rate=0.6, normalise="per_tensor", rescale="l1"),
    "linear": merge.Linear(),
    "task_arithmetic": merge.TaskArithmetic(scale=0.4),
    "ties": merge.Ties(density=0.3),
    "ties_global": merge.Ties(density=0.3, scope="global"),
    "dare": merge.Dare(keep_rate=0.5, combine="ties"),
    "della": merge.Della(keep_rate=0.5),
    "breadcrumbs": merge.Breadcrumbs(density=0.5, outliers=0.1),
    "sce": merge.Sce(select_rate=0.5),
    "ram": merge.Ram(threshold=0.02, boost=0.5),
    "nuslerp": merge.NuSlerp(),  # of two experts
    "karcher": merge.Karcher(),
    "fisher_deltas": merge.FisherDeltas(),  # needs importances
}

SHAPES = {  # few different matrices: each is compiled once for each method
    "embedding": (8, 6),
    "layers/attention/out": (3, 8, 6),
    "layers/experts/up": (3, 4, 8, 6),
    "layers/router/kernel": (3, 8, 6),
    "layers/router/bias": (3, 4),
    "layers/norm": (3, 8),
}
STACKS = {"layers": {"attention": 1, "experts": 2, "router": 1, "norm": 1}}


def nest(flat):
    tree = {}
    for path, leaf in flat.items():
        *parents, last = path.split("/")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = leaf
    return tree


def flat_weights(seed, size=1.0, shapes=None):
    shapes = SHAPES if shapes is None else shapes
    draw = np.random.default_rng(seed)
    return {p: (size * draw.normal(size=s)).astype(np.float32) for p, s in shapes.items()}


def models(sizes=(1e-2, 3e-2, 2e-2), shapes=None):
    """Base and experts as flat dicts; deltas share a direction and differ in size."""
    base, common = flat_weights(0, shapes=shapes), flat_weights(1, shapes=shapes)
    experts = {}
    for index, size in enumerate(sizes):
        own = flat_weights(10 + index, shapes=shapes)
        experts[f"expert{index}"] = {
            p: (b + size * (own[p] + 0.5 * common[p])).astype(np.float32) for p, b in base.items()
        }
    return base, experts


def apart(flat):
    """Every stack taken apart: layers/3/up instead of row 3 of layers/up."""
    found = {}
    for path, leaf in flat.items():
        parts = path.split("/")
        if parts[0] != "layers":
            found[path] = leaf
            continue
        for layer in range(leaf.shape[0]):
            start = f"layers/{layer}/{parts[1]}"
            if parts[1] != "experts":
                found["/".join([start, *parts[2:]])] = leaf[layer]
                continue
            for expert in range(leaf.shape[1]):
                found[f"{start}/{expert}/{parts[2]}"] = leaf[layer, expert]
    return found


def worst(found, expected, base, experts):
    """The largest error, as a share of the largest delta of any expert."""
    deltas = [
        np.abs(np.asarray(e, np.float64) - np.asarray(base, np.float64)).max() for e in experts
    ]
    error = np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64)).max()
    return float(error / max(deltas))
