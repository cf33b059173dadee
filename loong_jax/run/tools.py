"""The tools that recipes may name, in one table, and the agents that are made of them."""

import importlib
from collections.abc import Iterable

from loong_jax.data.tool_template import ChatTurns, ToolTemplate
from loong_jax.errors import ConfigError
from loong_jax.recipes import Recipe
from loong_jax.rollout.agentic.agent import Agent, Toolbox

TOOLS: dict[str, str] = {  # name that problems ask for -> "module:class"
    "prices": "loong_jax.environments.basket:PriceList",
    "python": "loong_jax.rollout.agentic.python_tool:PythonTool",
}


def toolbox(names: Iterable[str]) -> Toolbox:
    """New tools of these names. Raises ConfigError for a name that is not in the table."""
    return Toolbox(_make(name) for name in names)


def agent_of(recipe: Recipe, template: ToolTemplate | ChatTurns) -> Agent | None:
    """The agent of a recipe with tools, whose turns `template` writes; None for one without."""
    settings = recipe.tools
    if settings is None:
        return None
    return Agent(
        toolbox=toolbox(settings.names),
        limits=settings.limits,
        max_parked=settings.max_parked,
        max_calls_at_once=settings.max_calls_at_once,
        offers_all=settings.offers_all,
        template=template,
    )


def are_described(recipe: Recipe) -> bool:
    """Whether prompts say what the tools are."""
    return recipe.tools is not None and recipe.tools.describe


def _make(name: str):
    if name not in TOOLS:
        raise ConfigError(f"tool {name!r} is unknown. Choose one of {sorted(TOOLS)}.")
    module, kind = TOOLS[name].split(":")
    return getattr(importlib.import_module(module), kind)()
