"""The published objectives in float64, response by response, as their papers write them.

Written from the equations alone: nothing here is shared with `loong_jax.rl.objectives`. Each
function returns the loss of a list of responses. What a paper puts under a stop-gradient is read
from `fixed`, the responses at the point where the gradient is taken, so that finite differences
over `policy` see what the paper's gradient sees.
"""

import dataclasses
from math import exp, fsum, log, prod

import numpy as np


@dataclasses.dataclass
class Response:
    """Log-probabilities and advantages of the tokens that train; all lists are of one length."""

    policy: list[float]
    behavior: list[float]
    engine: list[float]
    proximal: list[float]
    reference: list[float]
    advantage: list[float]

    def __len__(self):
        return len(self.policy)

    def moved(self, t, by):
        policy = [*self.policy]
        policy[t] += by
        return dataclasses.replace(self, policy=policy)


def clip(x, low, high):
    return low if x < low else high if x > high else x


def ratios(r):
    return [exp(p - b) for p, b in zip(r.policy, r.behavior, strict=True)]


def engine_ratios(r):
    return [exp(b - e) for b, e in zip(r.behavior, r.engine, strict=True)]


def surrogate(ratio, advantage, low, high):
    return min(ratio * advantage, clip(ratio, low, high) * advantage)


def mean(values):
    return fsum(values) / len(values) if values else 0.0


def grpo(rs, fixed, *, groups, size, eps=0.2, beta=0.01):
    """arXiv:2509.18883, eq. 3."""
    total = 0.0
    for r in rs:
        terms = []
        for t, ratio in enumerate(ratios(r)):
            distance = r.reference[t] - r.policy[t]
            k3 = exp(distance) - distance - 1
            terms.append(surrogate(ratio, r.advantage[t], 1 - eps, 1 + eps) - beta * k3)
        total += mean(terms)
    return -total / (groups * size)


def longcat(
    rs, fixed, *, groups, size, limit, weigh=None, cap=2.0, low=0.8, high=3.0, pos_high=1.28
):
    """arXiv:2509.18883, eq. 4, by the sign of the advantage; `weigh(r)` gives the token weights."""
    weigh = weigh or (lambda r: [min(rho, cap) for rho in engine_ratios(r)])
    total = 0.0
    for r in rs:
        for ratio, gain, weight in zip(ratios(r), r.advantage, weigh(r), strict=True):
            kept = min(ratio, pos_high) if gain > 0 else min(max(ratio, low), high)
            total += weight * kept * gain
    return -total / (groups * size * limit)


def dr_grpo(rs, fixed, *, groups, size, limit, eps=0.2):
    """arXiv:2503.20783: no division by the length, but by a constant."""
    total = fsum(
        surrogate(ratio, gain, 1 - eps, 1 + eps)
        for r in rs
        for ratio, gain in zip(ratios(r), r.advantage, strict=True)
    )
    return -total / (groups * size) / limit


def dapo(rs, fixed, *, low=0.2, high=0.28):
    """arXiv:2503.14476, eq. 8, with the tokens of all groups in one mean."""
    terms = [
        surrogate(ratio, gain, 1 - low, 1 + high)
        for r in rs
        for ratio, gain in zip(ratios(r), r.advantage, strict=True)
    ]
    return -mean(terms)


def sequence_ratio(r):
    """arXiv:2507.18071, eq. 7."""
    return prod(ratios(r)) ** (1 / len(r))


def gspo(rs, fixed, *, groups, size, low=3e-4, high=4e-4):
    """arXiv:2507.18071, eq. 5: one term for each response, one advantage."""
    total = 0.0
    for r in rs:
        if len(r):
            total += surrogate(sequence_ratio(r), r.advantage[0], 1 - low, 1 + high)
    return -total / (groups * size)


def gspo_token(rs, fixed, *, groups, size, low=3e-4, high=4e-4):
    """arXiv:2507.18071, eq. 13 and 14."""
    total = 0.0
    for r, at in zip(rs, fixed, strict=True):
        terms = []
        for t in range(len(r)):
            ratio = sequence_ratio(at) * exp(r.policy[t]) / exp(at.policy[t])
            terms.append(surrogate(ratio, r.advantage[t], 1 - low, 1 + high))
        total += mean(terms)
    return -total / (groups * size)


def cispo(rs, fixed, *, low=0.0, high=5.0):
    """arXiv:2506.13585, eq. 4 and 5, with the tokens of all groups in one mean."""
    terms = []
    for r, at in zip(rs, fixed, strict=True):
        for t, ratio in enumerate(ratios(at)):
            terms.append(clip(ratio, low, high) * r.advantage[t] * r.policy[t])
    return -mean(terms)


def dual_clip(rs, fixed, *, groups, size, eps=0.2, cap=3.0):
    """arXiv:1912.09729: max(min(...), c A) where A < 0."""
    total = 0.0
    for r in rs:
        terms = []
        for ratio, gain in zip(ratios(r), r.advantage, strict=True):
            term = surrogate(ratio, gain, 1 - eps, 1 + eps)
            terms.append(max(term, cap * gain) if gain < 0 else term)
        total += mean(terms)
    return -total / (groups * size)


def decoupled_ppo(rs, fixed, *, eps=0.2, max_weight=5.0):
    """arXiv:2505.24298, 5.2, with the tokens above `max_weight` left out of the sum alone."""
    terms = []
    for r in rs:
        for t in range(len(r)):
            weight = exp(r.proximal[t] - r.engine[t])
            ratio = exp(r.policy[t] - r.proximal[t])
            term = surrogate(ratio, r.advantage[t], 1 - eps, 1 + eps)
            terms.append(weight * term if weight <= max_weight else 0.0)
    return -mean(terms)


# ---- weights of a response's tokens, from the engine ratio ------------------------------------


def token_tis(r, cap=2.0):
    return [min(rho, cap) for rho in engine_ratios(r)]


def sequence_tis(r, cap=2.0):
    return [min(prod(engine_ratios(r)), cap)] * len(r)


def token_mis(r, low=0.5, high=5.0):
    return [rho if low <= rho <= high else 0.0 for rho in engine_ratios(r)]


def sequence_mis(r, low=0.0, high=3.0):
    product = prod(engine_ratios(r))
    return [product if low <= product <= high else 0.0] * len(r)


def geometric_mask(r, low, high):
    average = exp(mean([log(rho) for rho in engine_ratios(r)]))
    return [1.0 if low <= average <= high else 0.0] * len(r)


def veto(r, below):
    return [0.0 if any(rho < below for rho in engine_ratios(r)) else 1.0] * len(r)


def gradient(loss, responses, places, step=1e-6):
    """d loss / d policy at each (response, token) of `places`, by central differences."""
    found = []
    for i, t in places:
        sides = [
            loss([r.moved(t, by) if j == i else r for j, r in enumerate(responses)], responses)
            for by in (step, -step)
        ]
        found.append((sides[0] - sides[1]) / (2 * step))
    return np.array(found)
