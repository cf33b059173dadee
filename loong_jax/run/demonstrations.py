"""Problems and demonstrations of a recipe, each a pure function of its seed and its number."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from loong_jax import environments, recipes
from loong_jax.data import chat_records, json_files, tool_template
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.data.tool_template import ToolTemplate
from loong_jax.environments import ProblemStream
from loong_jax.problems.problem import Problem
from loong_jax.recipes import FileProblems, ProblemSource, Recipe, SftStage, quickstart
from loong_jax.recipes import problems as problem_kinds
from loong_jax.run import own_problems, texts
from loong_jax.run.own_problems import FileStream, Pairs
from loong_jax.run.texts import Sampled, Texts

TOOL_S = 10.0
SAMPLES = "samples.jsonl"  # of a stage: what it kept of a teacher's answers
HELD_OUT_SEED = 0  # of validation and test problems: runs of other seeds meet the same ones


def problem_stream(
    settings: problem_kinds.DomainProblems, split: str, seed: int, *, describes_tools: bool = False
) -> ProblemStream:
    """Endless problems of one domain on one side of the split; `describes_tools` puts what a
    problem offers before its prompt, as `tool_template.description` writes it.
    """
    return ProblemStream(
        environment=_environment(settings.environment),
        level_weights=settings.level_weights,
        split=split,
        seed=seed,
        preamble=_description if describes_tools else None,
    )


def domains_of(problems: ProblemSource | None) -> tuple[str, ...]:
    """The domains that there are problems of."""
    if problems is None:
        return ()
    if isinstance(problems, FileProblems):
        return own_problems.domains(problems)
    return tuple(problems.by_domain())


def stream_of(
    recipe: Recipe, domain: str, split: str, *, seed: int | None = None
) -> ProblemStream | FileStream:
    """Endless problems of one domain of a recipe; of its own seed unless given."""
    problems, seed = recipe.problems, recipe.seed if seed is None else seed
    if isinstance(problems, FileProblems):
        return FileStream.of(problems, domain, split, seed)
    assert problems is not None, f"problems of {domain} are asked for, and there are none"
    domains, in_text = problems.by_domain(), _are_in_text(recipe)
    return problem_stream(domains[domain], split, seed, describes_tools=in_text)


def held_out(recipe: Recipe, domain: str, split: str, count: int) -> list[Problem]:
    """The same distinct problems for every stage and every seed of the recipe.

    A file may have fewer than `count`, and none of some domain.
    """
    return stream_of(recipe, domain, split, seed=HELD_OUT_SEED).take_distinct(count)


def pairs_of(recipe: Recipe, stage: SftStage, texts: Texts) -> "Demonstrations | Pairs":
    """Endless examples: the recipe's conversations, or solutions of its problems as pairs."""
    problems = recipe.problems
    if recipe.data is not None:
        given = chat_records.taught(chat_records.read(recipe.data), texts.tokenizer)
        return Pairs(given=tuple(given), seed=recipe.seed)
    assert problems is not None, "worked solutions are asked for, and there are no problems"
    if isinstance(problems, FileProblems):
        return own_problems.solutions(problems, recipe.seed, texts)
    return Demonstrations(
        problems=problems,
        style=stage.thinking,
        seed=recipe.seed,
        texts=texts,
        describes_tools=_are_in_text(recipe),
    )


def sampled(directory: Path, seed: int) -> Pairs:
    """The samples that a stage kept, repeated: as tokens where the student has the same ones."""
    given = [
        Sampled(r["prompt"], tuple(r["tokens"])) if "tokens" in r else (r["prompt"], r["response"])
        for r in json_files.read_jsonl(directory / SAMPLES)
    ]
    return Pairs(given=tuple(given), seed=seed)


def _are_in_text(recipe: Recipe) -> bool:
    """True where prompts themselves describe the tools: for models without a chat template."""
    has_template = recipe.model.vocab_size != AsciiTokenizer.vocab_size
    return texts.tools_are_described(recipe) and not has_template


def _description(problem: Problem) -> str:
    offered = texts.toolbox(problem.arguments.get("tools", ()))
    return tool_template.description(list(offered.values()))


@functools.cache
def _environment(name: str) -> environments.Environment:
    if problem_kinds.is_package(name):
        return problem_kinds.environment_of(name)
    return environments.get_environment(name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """Endless (prompt, response) pairs of a cold start, domains and styles mixed by chance.

    Iterating twice gives the same pairs.
    """

    problems: problem_kinds.GeneratedProblems | problem_kinds.PackagedProblems
    style: recipes.ThinkingStyle | None
    seed: int
    texts: Texts  # whose form the responses have
    describes_tools: bool = False

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return map(self.pair_at, itertools.count())

    def pair_at(self, number: int) -> tuple[str, str]:
        """Pair `number`, counted from 0."""
        streams, shares = self._streams
        rng = np.random.default_rng((self.seed, 1, number))
        stream = streams[int(rng.choice(len(streams), p=shares))]
        problem = stream.problem_at(number)
        style = self.style
        is_careful = style is None or rng.random() < style.careful_share_at(number)
        steps, answer = stream.environment.solve(problem)
        thinking = quickstart.thinking(steps, rng, is_careful=is_careful)
        asked = _turns_before(stream.environment, problem)
        return problem.prompt, asked + self.texts.render(thinking, answer)

    @functools.cached_property
    def _streams(self) -> tuple[list[ProblemStream], np.ndarray]:
        domains, in_text = self.problems.by_domain().values(), self.describes_tools
        shares = np.array([one.demonstration_share for one in domains])
        streams = [problem_stream(d, "train", self.seed, describes_tools=in_text) for d in domains]
        return streams, shares / shares.sum()


def _turns_before(environment: environments.Environment, problem: Problem) -> str:
    """The call of tools that a solution begins with, and their answers; "" without tools."""
    names = problem.arguments.get("tools", ())
    if not names:
        return ""
    toolbox = texts.toolbox(names)
    asked = getattr(environment, "calls")(problem)  # noqa: B009 - of those with tools alone
    answers = [toolbox[n].call(a, problem=problem, timeout_s=TOOL_S) for n, a in asked]
    calls = "".join(tool_template.call_text(n, a) for n, a in asked)
    return f"{calls}<eos>{ToolTemplate().text(answers)}"
