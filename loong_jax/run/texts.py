"""Problems, solutions and conversations as tokens of a recipe's model, and its tools."""

import dataclasses
import functools
import importlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from loong_jax import configs
from loong_jax.data import chat_records, tool_template
from loong_jax.data.chat_records import Conversation
from loong_jax.data.tokenizer import AsciiTokenizer, Tokenizer
from loong_jax.data.tool_template import ChatTurns, Described, ToolTemplate
from loong_jax.errors import ConfigError
from loong_jax.problems import response
from loong_jax.problems.problem import Problem
from loong_jax.problems.response import FORMS, ResponseForm
from loong_jax.recipes import Recipe
from loong_jax.remote import AnyPath
from loong_jax.rl import sft
from loong_jax.rollout.agentic.agent import Agent, Toolbox
from loong_jax.run import sources

Example = dict[str, np.ndarray]  # tokens and loss_mask


class Sampled(NamedTuple):
    """A response as it was sampled."""

    prompt: str
    tokens: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
    """A tokenizer, and the form of what is asked and answered with it."""

    tokenizer: Tokenizer
    files: AnyPath | None = None  # the directory of its tokenizer.json; None: ASCII
    form: ResponseForm = FORMS["tagged"]
    agent: Agent | None = None  # where the recipe has tools
    tells_tools: bool = False  # to the chat template, which has a form of its own for them

    def prompt(self, problem: Problem) -> np.ndarray:
        """int32: what the policy is given. ConfigError for text without tokens."""
        offered = ()
        if self.agent is not None and self.tells_tools:
            offered = self.agent.tools_of(problem).values()
        try:
            tokens = self.prompt_ids(problem.prompt, offered, problem.messages)
        except ValueError as error:
            raise ConfigError(f"problem {problem.uid} cannot be asked: {error}") from error
        return np.array(tokens, np.int32)

    def prompt_ids(
        self,
        prompt: str,
        offered: Iterable[Described] = (),
        messages: Sequence[tuple[str, str]] = (),
    ) -> list[int]:
        """Tokens of a question: a conversation, or a text that is continued.

        Without `messages` it is the one message of a user.
        """
        text = self.form.prompt_of(prompt)
        if self.form.prompt != "chat" or self.tokenizer.chat is None:
            return self.tokenizer.prompt_ids(text)
        described = [tool_template.schema_of(tool) for tool in offered] or None
        asked = [{"role": role, "content": content} for role, content in messages[:-1]]
        last = self.form.prompt_of(messages[-1][1]) if messages else text
        asked.append({"role": "user", "content": last})
        return self.tokenizer.prompt_ids(asked, tools=described)

    def example(self, item: tuple[str | Problem, str] | Conversation | Sampled) -> Example:
        """Tokens and loss mask of a conversation, or of a prompt with its response."""
        if isinstance(item, Conversation):
            return chat_records.encode(self.tokenizer, item)
        if isinstance(item, Sampled):
            tokens = list(item.tokens)
            if tokens[-1:] and tokens[-1] not in self.tokenizer.end_ids:
                tokens.append(self.tokenizer.eos_id)
            prompt = self.prompt_ids(item.prompt)
            mask = np.array([False] * len(prompt) + [True] * len(tokens))
            return {"tokens": np.array([*prompt, *tokens], np.int32), "loss_mask": mask}
        asked, text = item
        prompt = self.prompt(asked) if isinstance(asked, Problem) else self.prompt_ids(asked)
        return sft.encode_response(self.tokenizer, list(prompt), text)

    def has_tokens_of(self, other: "Texts") -> bool:
        """True where both tokenizers are the same."""
        mine, theirs = (
            None if one.files is None else (one.files / "tokenizer.json").read_bytes()
            for one in (self, other)
        )
        return mine == theirs

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
    files, hf_config, where = None, None, f"recipe {recipe.name}"
    if recipe.start_from is not None:
        source = sources.find(recipe.start_from)
        files, hf_config, where = source.files, source.hf_config, str(recipe.start_from)
    given = recipe.tokenizer
    tokenizer = sources.tokenizer_of(recipe.model, hf_config, given or files, where=where)
    if given is not None:
        files = given if given.is_dir() else given.parent
    return dataclasses.replace(texts_with(recipe, tokenizer), files=files)


def texts_with(recipe: Recipe, tokenizer: Tokenizer) -> Texts:
    """The texts of a recipe, as `texts_of`, with a tokenizer that is there already."""
    form = recipe.form or form_of(tokenizer)
    is_chat = form.prompt == "chat" and tokenizer.chat is not None
    agent = None
    if recipe.tools is not None:
        tools, template = toolbox(recipe.tools.names), ChatTurns() if is_chat else ToolTemplate()
        agent = configs.made_from(Agent, recipe.tools, toolbox=tools, template=template)
    tells = tools_are_described(recipe) and is_chat
    return Texts(tokenizer=tokenizer, form=form, agent=agent, tells_tools=tells)


def agent_of(recipe: Recipe) -> Agent | None:
    """In a host: the agent of the recipe's texts."""
    return texts_of(recipe).agent


_ASKED = [{"role": "user", "content": "1 + 1"}]


def form_of(tokenizer: Tokenizer) -> ResponseForm:
    """The form that a model of these tokens answers in, where nobody says."""
    if isinstance(tokenizer, AsciiTokenizer):
        return FORMS["tagged"]
    if tokenizer.chat is None:
        return FORMS["completion"]
    for form in (FORMS["longcat"], FORMS["think"]):
        if len(tokenizer.encode(form.think_open)) == 1:
            asked = tokenizer.chat.render(_ASKED, add_generation_prompt=True)
            is_opened = asked.rstrip().endswith(form.think_open)
            return dataclasses.replace(form, opening="prompt" if is_opened else "either")
    return FORMS["plain"]


# ---- tools ---------------------------------------------------------------------------------------

TOOLS: dict[str, str] = {  # name that problems ask for -> "module:class"
    "prices": "loong_jax.environments.chains:PriceList",
    "python": "loong_jax.rollout.agentic.agent:PythonTool",
}


def toolbox(names: Iterable[str]) -> Toolbox:
    """New tools of these names. Raises ConfigError for a name that is not in the table."""
    tools = []
    for name in names:
        if name not in TOOLS:
            raise ConfigError(f"tool {name!r} is unknown. Choose one of {sorted(TOOLS)}.")
        module, kind = TOOLS[name].split(":")
        tools.append(getattr(importlib.import_module(module), kind)())
    return Toolbox(tools)


def tools_are_described(recipe: Recipe) -> bool:
    """True if prompts describe the tools."""
    return recipe.tools is not None and recipe.tools.describe
