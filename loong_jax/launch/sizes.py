"""Lengths that a recipe leaves open (0), measured in tokens on the problems at hand."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

from loong_jax.environments.problem import Problem
from loong_jax.launch import demonstrations, own_problems
from loong_jax.launch.recipe import FileProblems, Recipe, RlStage, SampleStage, SftStage, Stage
from loong_jax.launch.texts import Texts

NUM_DRAWN = 256  # problems of a generator, on each side of the split, and examples of a cold start
MARGIN = 1.25  # of what is drawn without end over what was seen of it
ROUND_TO = 16  # tokens
MOST_READ_AT_ONCE = 512  # tokens of a prompt; longer ones are read in chunks


def fitted(recipe: Recipe, texts: Texts) -> Recipe:
    """The recipe with every length set; the same problems give the same lengths."""
    if recipe.problems is None:
        longest = 0
    else:
        longest = max((len(texts.prompt(p)) for p in _problems(recipe)), default=0)
        longest = _with_margin(recipe, longest)
    stages = {name: _fit(recipe, stage, texts, longest) for name, stage in recipe.stages.items()}
    drawn = [
        stage.sampling.max_new_tokens
        for stage in recipe.stages.values()
        if isinstance(stage, RlStage | SampleStage)
    ]
    response = max([recipe.evaluation.sampling.max_new_tokens, *drawn])
    engine = recipe.engine
    read = engine.prefill_length or min(_rounded(longest), MOST_READ_AT_ONCE)
    engine = dataclasses.replace(
        engine,
        prefill_length=read,
        cache_length=engine.cache_length or _rounded(longest + response),
        chunked_prefill=engine.chunked_prefill or longest > read,
    )
    return dataclasses.replace(recipe, engine=engine, stages=stages)


def _fit(recipe: Recipe, stage: Stage, texts: Texts, longest_prompt: int) -> Stage:
    if isinstance(stage, RlStage) and not stage.row_length:
        room = _rounded(longest_prompt + stage.sampling.max_new_tokens)
        return dataclasses.replace(stage, row_length=room)
    if isinstance(stage, SftStage) and not stage.row_length:
        longest = max(
            (len(texts.example(pair)["tokens"]) for pair in _pairs(recipe, stage, texts)), default=0
        )
        return dataclasses.replace(stage, row_length=_rounded(_with_margin(recipe, longest)))
    return stage


def _problems(recipe: Recipe) -> Iterator[Problem]:
    """All of a file; of generators, the first ones that are trained on and tested with."""
    problems = recipe.problems
    if isinstance(problems, FileProblems):
        yield from own_problems.read(problems).problems
        return
    for domain in demonstrations.domains_of(problems):
        for split in ("train", "test"):
            stream = demonstrations.stream_of(recipe, domain, split)
            yield from (stream.problem_at(number) for number in range(NUM_DRAWN))


def _pairs(recipe: Recipe, stage: SftStage, texts: Texts) -> Iterable[tuple[str, str]]:
    if isinstance(recipe.problems, FileProblems):
        return own_problems.solutions(recipe.problems, recipe.seed, texts).given
    return itertools.islice(demonstrations.pairs_of(recipe, stage, texts), NUM_DRAWN)


def _with_margin(recipe: Recipe, longest: int) -> int:
    return longest if isinstance(recipe.problems, FileProblems) else int(MARGIN * longest)


def _rounded(length: int) -> int:
    return -(-max(length, 1) // ROUND_TO) * ROUND_TO
