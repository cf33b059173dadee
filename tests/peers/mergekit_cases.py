"""Fusions as mergekit 0.1.5 computes them: inputs, settings, masks and results.

mergekit is LGPL-3.0: it is imported here, its results are stored as data, none of its code is.
Where its definitions differ from ours the inputs avoid the difference, or the method is left out:

- DARE rescales to the L1 norm of each tensor (ours: 1/q by default), so ours runs with "l1".
- TIES trims exactly k entries and breaks ties by position (ours keeps all that equal the last), and
  per tensor (its authors trim over the whole model): random inputs have no equal entries.
- SCE takes equal weights when the mean squares sum to less than 1e-6 (ours: 0, and with
  `Sce(floor=1e-6)` as theirs) and bounds its divisor at 1e-6: the deltas here are larger.
- `normalize` with weights of sum 0 divides by 1 there and is refused here.
- The LongCat recipe does not exist there. Its steps do: experts are normalised before they are
  handed over, then "dare_ties" without its own normalisation is dropout, election and a sum.
- DELLA rescales to the L1 norm too, so ours runs with "l1"; it ranks along a tensor's second axis.
- Breadcrumbs breaks ties by position, as TIES does.
- RAM+ ("ramplus_tl") counts per tensor (ours: over the model by default).
- SLERP's weights are 1 - t and t. Its linear fallback also takes in antipodal tensors, which we
  refuse. Karcher takes the first direction where all cancel, and we refuse; its weights are equal.
- mergekit's masks come from `torch.bernoulli` under a seed, expert by expert, and are stored; its
  dtype is float32 throughout, since its default for bf16 files is bf16 arithmetic.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tests.merge.mergekit_settings import PAIRS

SEED = 20251120
WEIGHTS = (0.5, 1.5, 1.0)
SIZES = (1e-2, 4e-2, 2e-2)  # standard deviations of the deltas
SHAPES = {"matrix": (24, 20), "vector": (40,), "cube": (3, 8, 10)}

# name: (mergekit's method, its parameters)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("linear", {"normalize": True}),
    "linear_sum": ("linear", {"normalize": False}),
    "task_arithmetic": ("task_arithmetic", {"lambda": 0.7}),
    "task_arithmetic_mean": ("task_arithmetic", {"normalize": True}),
    "ties": ("ties", {"density": 0.2, "lambda": 1.3}),
    "ties_sum": ("ties", {"density": 0.55, "normalize": False}),
    "dare_linear": ("dare_linear", {"density": 0.4, "lambda": 0.9}),
    "dare_ties": ("dare_ties", {"density": 0.4}),
    "dare_ties_mean": ("dare_ties", {"density": 0.6, "normalize": True}),
    "sce": ("sce", {}),
    "sce_select": ("sce", {"select_topk": 0.3}),
    "della": ("della", {"density": 0.5, "epsilon": 0.3}),
    "della_linear": ("della_linear", {"density": 0.6, "epsilon": 0.15, "lambda": 0.8}),
    "breadcrumbs": ("breadcrumbs", {"density": 0.6, "gamma": 0.1, "lambda": 1.2}),
    "breadcrumbs_ties": ("breadcrumbs_ties", {"density": 0.3, "gamma": 0.05, "normalize": True}),
    "ram": ("ram", {"epsilon": 0.02}),
    "ramplus": ("ramplus_tl", {"epsilon": 0.02, "r": 0.3, "alpha": 0.9}),
    "slerp": ("slerp", {"t": 0.3}),
    "slerp_far": ("slerp", {"t": 0.7}),
    "nuslerp": ("nuslerp", {}),
    "nuslerp_models": ("nuslerp", {}),
    "karcher": ("karcher", {}),
    "karcher_far": ("karcher", {"max_iter": 30}),
    "longcat": ("dare_ties", {"density": 0.5, "lambda": 1.5}),
    "longcat_mean": ("dare_ties", {"density": 1.0, "normalize": True}),
}


BASELESS = ("linear", "slerp", "nuslerp_models", "karcher")
UNWEIGHTED = ("sce", "ram", "ramplus_tl", "slerp", "karcher")


class Case(NamedTuple):
    base: dict[str, np.ndarray]
    experts: list[dict[str, np.ndarray]]
    masks: list[dict[str, np.ndarray]] | None
    fused: dict[str, np.ndarray]


def inputs() -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """Base and experts, float32; experts share a direction, so elections have majorities."""
    draw = np.random.default_rng(SEED)
    base = {name: draw.normal(size=shape) for name, shape in SHAPES.items()}
    common = {name: draw.normal(size=shape) for name, shape in SHAPES.items()}
    experts = [
        {n: base[n] + size * (0.5 * common[n] + draw.normal(size=s)) for n, s in SHAPES.items()}
        for size in SIZES
    ]
    to_float32 = lambda tree: {n: x.astype(np.float32) for n, x in tree.items()}  # noqa: E731
    return to_float32(base), [to_float32(expert) for expert in experts]


def normalised(base: dict, experts: list[dict]) -> list[dict]:
    """Every delta brought to the mean of the deltas' global norms, in float64."""
    deltas = [{n: e[n].astype(float) - base[n] for n in base} for e in experts]
    norms = [np.sqrt(sum(np.sum(x**2) for x in d.values())) for d in deltas]
    return [
        {n: (base[n] + d[n] * (np.mean(norms) / norm)).astype(np.float32) for n in base}
        for d, norm in zip(deltas, norms, strict=True)
    ]


def far(base: dict, experts: list[dict]) -> list[dict]:
    """The experts with deltas twenty times as large, so that directions differ."""
    return [
        {n: (base[n] + 20 * (e[n].astype(float) - base[n])).astype(np.float32) for n in base}
        for e in experts
    ]


def run(name: str) -> Case:
    """One case through mergekit, one tensor after the other."""
    import torch
    from mergekit.merge_methods.api import merge_tensors

    method, parameters = CASES[name]
    base, experts = inputs()
    if name.endswith("_far"):
        experts = far(base, experts)
    given = normalised(base, experts) if name.startswith("longcat") else experts
    weights = list(WEIGHTS)
    if name.startswith("longcat"):
        weights = [weight / sum(WEIGHTS) for weight in WEIGHTS]
    if name in PAIRS:
        given, weights = given[:2], weights[:2]
    drops_out = method.startswith(("dare", "della"))
    masks = [{} for _ in experts] if drops_out else None
    fused = {}
    for place, leaf in enumerate(base):
        tensors = [torch.from_numpy(expert[leaf]) for expert in given]
        settings = dict(parameters)
        if method in BASELESS or name in BASELESS:
            base_index = 0 if method == "slerp" else None  # its base is its first model
        else:
            tensors, base_index = [torch.from_numpy(base[leaf]), *tensors], 0
        if method not in UNWEIGHTED:
            settings["weight"] = weights
        torch.manual_seed(SEED + place)
        merged = merge_tensors(
            tensors, method, parameters=settings, base_index=base_index, dtype=torch.float32
        )
        fused[leaf] = merged.numpy()
        if masks is not None:
            torch.manual_seed(SEED + place)
            for expert, mask in zip(given, masks, strict=True):
                mask[leaf] = draw_mask(
                    expert[leaf] - base[leaf], parameters["density"], parameters.get("epsilon")
                )
    return Case(base, experts, masks, fused)


def draw_mask(delta: np.ndarray, density: float, epsilon: float | None) -> np.ndarray:
    """The next mask under torch's seed; density 1 draws nothing.

    With `epsilon`, DELLA's rates: from density - epsilon for the smallest of a row to + epsilon.
    """
    import torch

    if density >= 1:
        return np.ones(delta.shape, bool)
    rates = np.full(delta.shape, density, np.float32)
    if epsilon is not None:
        sizes = torch.from_numpy(np.abs(np.atleast_2d(delta)))
        places = sizes.argsort(dim=1).argsort(dim=1).to(torch.float32).numpy()
        share = places / (sizes.shape[1] - 1)
        rates = (np.float32(density - epsilon) + share * np.float32(2 * epsilon)).astype(np.float32)
        rates = rates.reshape(delta.shape) if delta.ndim < 2 else rates
    return torch.bernoulli(torch.from_numpy(rates)).numpy().astype(bool)


def flatten(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Names and arrays for an .npz; the inputs are the same in every case and stored apart."""
    for leaf, array in case.fused.items():
        yield f"fused/{leaf}", array
    for index, mask in enumerate(case.masks or []):
        for leaf, array in mask.items():
            yield f"mask/{index}/{leaf}", np.packbits(array)
