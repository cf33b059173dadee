"""A teacher's right answers to training problems, from which a student learns.

The stage leaves `samples.jsonl`: problem, response, verdict, of those that were kept. It is written
whole at the end of each piece, so a stage that was stopped goes on with the next one.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from loong_jax.data import json_files
from loong_jax.errors import ConfigError
from loong_jax.problems.problem import Problem
from loong_jax.recipes import SampleStage
from loong_jax.rollout import sampling
from loong_jax.rollout.records import Rollout
from loong_jax.run import demonstrations, serve, sources
from loong_jax.run.session import Session
from loong_jax.run.stages import Work
from loong_jax.run.texts import Texts

PIECE = 64  # problems that are posed, judged and noted together
_NO_TEXT = "\ufffd"  # decoded from a token, or a part of a character, without text


def run_samples(work: Work[SampleStage]) -> dict[str, Any]:
    """Samples the teacher; what is asked depends on the recipe's seed alone."""
    session, settings, own, progress = work.session, work.stage, work.own, work.progress
    problems: list[Problem] = []
    for domain in session.domains:
        stream = demonstrations.stream_of(session.recipe, domain, "train")
        problems += stream.take_distinct(settings.num_problems)
    noted = json_files.read_json(own / "noted.json", {"pieces": 0, "judged": 0, "right": 0})
    kept = json_files.read_jsonl(own / demonstrations.SAMPLES)[: noted.get("kept", 0)]
    pieces = [problems[i : i + PIECE] for i in range(0, len(problems), PIECE)]
    progress.start(work.name, num_steps=len(pieces), first_step=noted["pieces"])
    places = work.directories
    teacher = places.given.get(settings.teacher) or places.inputs[settings.teacher]
    source = sources.find(teacher)
    texts = _texts_of(session, source)
    keeps_tokens = texts.has_tokens_of(session.texts)
    rules = session.rules  # of weights whose sizes need not be those of the recipe's model
    engine, weights = serve.load(source, texts.tokenizer, session.recipe.engine, rules)
    sampler = sampling.ProblemSampler(
        engine,
        weights,
        seed=session.recipe.seed,
        num_threads=2 if rules.mesh is None else 1,
        encode_prompt=texts.prompt,
    )
    for number in range(noted["pieces"], len(pieces)):
        asked = pieces[number]
        sampled = sampler(asked, settings.samples_per_problem, settings.sampling)
        found, right = _right(session, asked, sampled, keeps_tokens=keeps_tokens)
        for records in found:
            different = {record["response"]: record for record in records}
            kept += list(different.values())[: settings.max_kept]
        noted = {
            "pieces": number + 1,
            "judged": noted["judged"] + len(asked) * settings.samples_per_problem,
            "right": noted["right"] + right,
            "kept": len(kept),
        }
        json_files.write_jsonl(own / demonstrations.SAMPLES, kept)
        json_files.write_json(own / "noted.json", noted)
        progress.step(number + 1, {"right": noted["right"] / noted["judged"]})
    if not kept:
        raise ConfigError(
            f"the teacher {teacher} answered none of {len(problems)} problems right, so there is "
            "nothing to learn from it. Take another teacher, or easier levels."
        )
    progress.finish(work.name, f"{len(kept)} of {noted['judged']} samples kept")
    return {"num_problems": len(problems), **noted}


def _texts_of(session: Session, source: sources.Source) -> Texts:
    """The texts of the teacher; the student's where it has none of its own."""
    own = session.texts
    if source.files is None and source.config.vocab_size == own.tokenizer.vocab_size:
        return own
    tokenizer = sources.tokenizer_of(
        source.config, source.hf_config, source.files, where=str(source.weights)
    )
    return dataclasses.replace(own, tokenizer=tokenizer, files=source.files)


def _right(
    session: Session,
    problems: Sequence[Problem],
    sampled: Sequence[Sequence[Rollout]],
    *,
    keeps_tokens: bool = False,
) -> tuple[list[list[dict[str, Any]]], int]:
    """Records of the right answers to each problem, and how many there are.

    One whose tokens have no text is left out: a student would be taught other tokens, or none.
    """
    pairs = [(i, r) for i, rollouts in enumerate(sampled) for r in rollouts]
    verdicts = session.judge([problems[i] for i, _ in pairs], [rollout for _, rollout in pairs])
    found: list[list[dict[str, Any]]] = [[] for _ in problems]
    for (i, rollout), verdict in zip(pairs, verdicts, strict=True):
        is_whole = rollout.finish_reason == "stop" and _NO_TEXT not in rollout.text
        if verdict.is_correct and is_whole:
            record = {
                "uid": problems[i].uid,
                "domain": problems[i].domain,
                "prompt": problems[i].prompt,
                "response": rollout.text,
                "verdict": dataclasses.asdict(verdict),
            }
            tokens = {"tokens": rollout.tokens.tolist()} if keeps_tokens else {}
            found[i].append(record | tokens)
    return found, sum(map(len, found))
