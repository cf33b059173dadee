"""Judges reached over HTTP: LLM judges, generative reward models, rubric grading.

    gate               answers that are refused without a request
    prompts, replies   requests, and their strict reading
    client             budget, retries
    genrm              batches of answers, with some whose verdict is known among them; a ledger
    verifier           the verifier, and rubrics: weighted criteria

Sources: LongCat-Flash-Thinking 3.2.2 (GenRM); Loong 2.2; arXiv 2507.08794 (master keys);
arXiv 2505.22203 (rules first).
"""

from loong_jax.verifiers.judge.client import Budget, Endpoint
from loong_jax.verifiers.judge.genrm import Item, Judge, JudgeConfig, Ledger
from loong_jax.verifiers.judge.verifier import JudgeVerifier

__all__ = ["Budget", "Endpoint", "Item", "Judge", "JudgeConfig", "JudgeVerifier", "Ledger"]
