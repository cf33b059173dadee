"""What a recipe's model reads and writes: problems, solutions and conversations as tokens."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from loong_jax.data import chat_records, response
from loong_jax.data.chat_records import Conversation
from loong_jax.data.response import FORMS, ResponseForm
from loong_jax.data.tokenizer import AsciiTokenizer, Tokenizer
from loong_jax.environments.problem import Problem
from loong_jax.launch import sources, tools
from loong_jax.launch.recipe import Recipe
from loong_jax.rl import sft

Example = dict[str, np.ndarray]  # tokens and loss_mask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
    """A tokenizer, and the form of what is asked and answered with it."""

    tokenizer: Tokenizer
    form: ResponseForm = FORMS["tagged"]
    describes_tools: bool = False  # to the chat template, which has a form of its own for them

    def prompt(self, problem: Problem) -> np.ndarray:
        """int32: what the policy is given. ValueError for text without tokens."""
        offered = problem.arguments.get("tools", ()) if self.describes_tools else ()
        return np.array(self.prompt_ids(problem.prompt, offered), np.int32)

    def prompt_ids(self, prompt: str, offered: Sequence[str] = ()) -> list[int]:
        """Tokens of a question: the one message of a user, or a text that is continued."""
        text = self.form.prompt_of(prompt)
        if self.form.prompt != "chat" or self.tokenizer.chat is None:
            return self.tokenizer.prompt_ids(text)
        described = [tools.schema(tool) for tool in tools.toolbox(offered).values()] or None
        return self.tokenizer.prompt_ids([{"role": "user", "content": text}], tools=described)

    def example(self, item: tuple[str, str] | Conversation) -> Example:
        """Tokens and loss mask of a conversation, or of a prompt with its response."""
        if isinstance(item, Conversation):
            return chat_records.encode(self.tokenizer, item)
        prompt, text = item
        return sft.encode_response(self.tokenizer, self.prompt_ids(prompt), text)

    def render(self, thinking: str, answer: str) -> str:
        """A response in the form."""
        return response.render(self.form, thinking, answer)


class RecipePrompts:
    """Problems of a recipe as prompts, in processes that make the tokenizer themselves."""

    def __init__(self, recipe: Recipe):
        self._recipe = recipe

    def __reduce__(self) -> tuple[Any, ...]:
        return RecipePrompts, (self._recipe,)

    def __call__(self, problem: Problem) -> np.ndarray:
        return self._texts.prompt(problem)

    @functools.cached_property
    def _texts(self) -> Texts:
        return texts_of(self._recipe)


def texts_of(recipe: Recipe) -> Texts:
    """The checkpoint's tokenizer and template, unless the recipe names others."""
    source = None if recipe.start_from is None else sources.find(recipe.start_from)
    files = None if source is None else source.files
    hf_config = None if source is None else source.hf_config
    tokenizer = sources.tokenizer_of(
        recipe.model,
        hf_config,
        recipe.tokenizer or files,
        where=str(recipe.start_from or f"recipe {recipe.name}"),
    )
    return texts_with(recipe, tokenizer)


def texts_with(recipe: Recipe, tokenizer: Tokenizer) -> Texts:
    """As `texts_of`, of a tokenizer that is there already."""
    form = recipe.form or form_of(tokenizer)
    is_described = tools.are_described(recipe) and tokenizer.chat is not None
    return Texts(tokenizer=tokenizer, form=form, describes_tools=is_described)


def form_of(tokenizer: Tokenizer) -> ResponseForm:
    """The form that a model of these tokens answers in, where nobody says."""
    if isinstance(tokenizer, AsciiTokenizer):
        return FORMS["tagged"]
    if tokenizer.chat is None:
        return FORMS["completion"]
    if len(tokenizer.encode(response.THINK_OPEN)) == 1:
        return FORMS["longcat"]
    return FORMS["think"] if len(tokenizer.encode("<think>")) == 1 else FORMS["plain"]
