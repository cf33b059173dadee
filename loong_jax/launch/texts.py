"""What a recipe's model reads and writes: problems and worked solutions as tokens."""

import dataclasses

import numpy as np

from loong_jax.data.tokenizer import AsciiTokenizer, Tokenizer
from loong_jax.environments.problem import Problem
from loong_jax.launch.recipe import Recipe
from loong_jax.rl import sft


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
    """The tokenizer of a model."""

    tokenizer: Tokenizer

    def prompt(self, problem: Problem) -> np.ndarray:
        """int32: what the policy is given. ValueError for text without tokens."""
        return np.array(self.tokenizer.prompt_ids(problem.prompt), np.int32)

    def example(self, pair: tuple[str, str]) -> dict[str, np.ndarray]:
        """Tokens and loss mask of a prompt with its response."""
        return sft.encode_pair(self.tokenizer, *pair)


def texts_of(recipe: Recipe) -> Texts:
    return Texts(tokenizer=AsciiTokenizer())
