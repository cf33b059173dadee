"""Lengths that a recipe leaves open (0), measured in tokens on the problems at hand."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from loong_jax.data import packing
from loong_jax.errors import ConfigError
from loong_jax.problems.problem import Problem
from loong_jax.recipes import FileProblems, Recipe, RlStage, SampleStage, SftStage, Stage
from loong_jax.recipes.stages import of_length, of_sizes
from loong_jax.run import demonstrations, own_problems
from loong_jax.run.own_problems import Pairs
from loong_jax.run.texts import Texts

NUM_DRAWN = 256  # problems of a generator, on each side of the split, and examples of a cold start
MARGIN = 1.25  # of what is drawn without end over what was seen of it
ROUND_TO = 16  # tokens
LEAST_ROW = 256  # tokens of a row that examples are packed into, where there are so many
WARMUP_SHARE = 0.03  # of a schedule whose length follows from epochs
MOST_READ_AT_ONCE = 512  # tokens of a prompt; longer ones are read in chunks


def fitted(recipe: Recipe, texts: Texts) -> Recipe:
    """The recipe with every length set; the same problems give the same lengths."""
    recipe = with_sampling(recipe, texts.form.stop)
    engine, stages = recipe.engine, recipe.stages.values()
    rows = [stage.row_length for stage in stages if isinstance(stage, RlStage | SftStage)]
    has_epochs = any(isinstance(stage, SftStage) and stage.epochs for stage in stages)
    if all((engine.cache_length, engine.prefill_lengths, *rows)) and not has_epochs:
        return recipe
    longest = 1  # where nothing is posed, as with conversations alone
    if recipe.problems is not None:
        longest = max((len(texts.prompt(p)) for p in _problems(recipe)), default=0)
        longest = _with_margin(recipe, longest)
    drawn = [s.sampling.max_new_tokens for s in stages if isinstance(s, RlStage | SampleStage)]
    response = max([recipe.evaluation.sampling.max_new_tokens, *drawn])
    _refuse_too_long(recipe, longest + response)
    read = engine.prefill_lengths or (min(_rounded(longest), MOST_READ_AT_ONCE),)
    engine = dataclasses.replace(
        engine,
        prefill_lengths=read,
        cache_length=engine.cache_length or _rounded(longest + response),
        chunked_prefill=engine.chunked_prefill or longest > read[-1] or recipe.tools is not None,
    )
    fit = recipe.mapped(lambda _, stage: _fit(recipe, stage, texts, longest, response))
    return dataclasses.replace(fit, engine=engine)


def _fit(recipe: Recipe, stage: Stage, texts: Texts, longest_prompt: int, response: int) -> Stage:
    if isinstance(stage, RlStage) and not stage.row_length:
        # for a prompt with all responses to it, or with those that fit into LEAST_ROW
        own = stage.sampling.max_new_tokens
        most = (min(LEAST_ROW, recipe.model.max_position) - longest_prompt) // own
        length = _rounded(longest_prompt + min(stage.group_size, max(1, most)) * own)
        return dataclasses.replace(stage, row_length=length)
    if isinstance(stage, SftStage) and stage.samples_of is None:
        if stage.row_length and stage.epochs is None:
            return stage
        lengths = [len(texts.example(pair)["tokens"]) for pair in _pairs(recipe, stage, texts)]
        if not stage.row_length:
            _refuse_too_long(recipe, max(lengths, default=0))
            longest = _with_margin(recipe, max(lengths, default=0))
            length = max(_rounded(longest), _rounded(min(LEAST_ROW, sum(lengths))))
            length = min(length, recipe.model.max_position)
            stage = dataclasses.replace(stage, row_length=length)
        return stage if stage.epochs is None else _for_epochs(stage, stage.epochs, lengths)
    if isinstance(stage, SftStage) and not stage.row_length:
        return dataclasses.replace(stage, row_length=_rounded(longest_prompt + response))
    return stage


def _for_epochs(stage: SftStage, epochs: float, lengths: Iterable[int]) -> SftStage:
    """The stage with as many steps, and a schedule of that length unless it has one of its own."""
    num_batches, room = 0, None
    for length in lengths:  # as `sft.batches` fills them
        if room is None or packing.place(room, length, stage.row_length, stage.rows) is None:
            room = []
            packing.place(room, length, stage.row_length)
            num_batches += 1
    steps = max(1, math.ceil(epochs * num_batches))
    stage = of_length(stage, steps, warmup_share=WARMUP_SHARE)
    return dataclasses.replace(stage, epochs=None)


def with_sampling(recipe: Recipe, stops: tuple[str, ...]) -> Recipe:
    """The recipe, with its length of responses and the texts that end them in all stages."""
    given = {"max_new_tokens": recipe.max_new_tokens, "stops": stops or None}
    changes: dict[str, Any] = {name: one for name, one in given.items() if one is not None}
    if not changes:
        return recipe
    sampling = dataclasses.replace(recipe.evaluation.sampling, **changes)
    evaluation = dataclasses.replace(recipe.evaluation, sampling=sampling)
    length = recipe.max_new_tokens

    def sampled(_: str, stage: Stage) -> Stage:
        if not isinstance(stage, RlStage | SampleStage):
            return stage
        if isinstance(stage, RlStage) and length not in (None, stage.sampling.max_new_tokens):
            stage = of_sizes(stage, group_size=stage.group_size, max_new_tokens=length)
        asked = dataclasses.replace(stage.sampling, **changes)
        return dataclasses.replace(stage, sampling=asked)

    return dataclasses.replace(recipe.mapped(sampled), evaluation=evaluation)


def _refuse_too_long(recipe: Recipe, length: int) -> None:
    if length > recipe.model.max_position:
        raise ConfigError(
            f"the longest prompt and response have {length} tokens together, and the model's "
            f"max_position is {recipe.model.max_position}. Lower --max-new-tokens, or leave the "
            "longest problems out."
        )


def _problems(recipe: Recipe) -> Iterator[Problem]:
    """All problems of a file; of generators, the first ones that are trained on and tested with."""
    problems = recipe.problems
    if isinstance(problems, FileProblems):
        yield from own_problems.read(problems).problems
        return
    for domain in demonstrations.domains_of(problems):
        for split in ("train", "test"):
            stream = demonstrations.stream_of(recipe, domain, split)
            yield from (stream.problem_at(number) for number in range(NUM_DRAWN))


def _pairs(recipe: Recipe, stage: SftStage, texts: Texts) -> Iterable[Any]:
    found = demonstrations.pairs_of(recipe, stage, texts)
    if stage.epochs is not None and not isinstance(found, Pairs):
        raise ConfigError(
            f"epochs={stage.epochs} of examples that are generated without end is no number of "
            "steps. Give --data, or num_steps in its place."
        )
    return found.given if isinstance(found, Pairs) else itertools.islice(found, NUM_DRAWN)


def _with_margin(recipe: Recipe, longest: int) -> int:
    return longest if isinstance(recipe.problems, FileProblems) else int(MARGIN * longest)


def _rounded(length: int) -> int:
    return -(-max(length, 1) // ROUND_TO) * ROUND_TO
