"""A file of problems: its sides, its order, what is refused, and a run on it from end to end."""

import contextlib
import dataclasses
import functools
import json
import os
import re
import subprocess

import pytest

from loong_jax import cli, configs, recipes
from loong_jax.data import json_files
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError, VerifierError
from loong_jax.orchestrator.curriculum import Curriculum, GrowingContext, PassRates
from loong_jax.problems import verdict
from loong_jax.recipes import FileProblems, LocalVerifiers
from loong_jax.rl import checkpoint
from loong_jax.rl.objectives import longcat_objective
from loong_jax.rl.optimizers import AdamW, WarmupConstant
from loong_jax.rollout.records import Ticket
from loong_jax.run import demonstrations, own_admission, own_problems, run
from loong_jax.run.own_problems import FileStream
from loong_jax.run.session import Judge, Session
from loong_jax.run.texts import Texts
from loong_jax.verifiers.pool import LocalVerifierPool
from tests.docs import reading
from tests.doubles import tiny
from tests.doubles.fake_world import fake_rollout

TEXTS = Texts(tokenizer=AsciiTokenizer())
DOCS = reading.DOCS / "tutorials/own_problems.md"


def sums(count, **more):
    return [
        {"prompt": f"{n}+1=", "gold": str(n + 1), "solution": f"{n} and 1", "level": n % 3, **more}
        for n in range(count)
    ]


@pytest.fixture
def file(tmp_path):
    return json_files.write_jsonl(tmp_path / "mine.jsonl", sums(60))


def settings(file, **changes):
    return FileProblems(file=file, **changes)


def test_sides_are_apart_and_adding_lines_moves_none(file, tmp_path):
    sides = {
        split: {posed.problem.uid for posed in own_problems.side(settings(file), "stem", split)}
        for split in ("train", "validation", "test")
    }
    assert sum(map(len, sides.values())) == len(set.union(*sides.values())) == 60
    assert min(map(len, sides.values())) > 0
    more = json_files.write_jsonl(tmp_path / "more.jsonl", [*reversed(sums(90))])
    for split, known in sides.items():
        grown = {posed.problem.uid for posed in own_problems.side(settings(more), "stem", split)}
        assert known <= grown


def test_a_stream_poses_every_problem_before_it_poses_one_again(file):
    stream = FileStream.of(settings(file), "stem", "train", 3)
    count = len(stream.given)
    first = [stream.problem_at(cursor).uid for cursor in range(count)]
    second = [stream.problem_at(cursor).uid for cursor in range(count, 2 * count)]
    assert len(set(first)) == count
    assert set(first) == set(second)
    assert first != second
    other = FileStream.of(settings(file), "stem", "train", 4)
    assert [other.problem_at(cursor).uid for cursor in range(count)] != first
    assert len(stream.take_distinct(10_000)) == count


def test_solutions_of_the_training_side_alone_are_shown(file):
    pairs = own_problems.solutions(settings(file), seed=0, texts=TEXTS)
    held_out = {
        posed.problem.prompt
        for split in ("validation", "test")
        for posed in own_problems.side(settings(file), "stem", split)
    }
    shown = {prompt for prompt, _ in pairs.given}
    assert shown
    assert not shown & held_out
    twice = [[pair for pair, _ in zip(pairs, range(150), strict=False)] for _ in range(2)]
    assert twice[0] == twice[1]
    assert set(twice[0]) == set(pairs.given)


def test_a_file_that_cannot_be_split_or_shown_is_refused(tmp_path):
    few = json_files.write_jsonl(tmp_path / "few.jsonl", sums(2))
    with pytest.raises(ConfigError, match=r"holds 2 problems.*--problems\.held-out-share"):
        own_problems.domains(settings(few))
    bare = json_files.write_jsonl(
        tmp_path / "bare.jsonl", [{"prompt": f"{n}?", "gold": "1"} for n in range(60)]
    )
    with pytest.raises(ConfigError, match=r"no problem of .* has a solution.*--start-from"):
        own_problems.solutions(settings(bare), seed=0, texts=TEXTS)
    with pytest.raises(ConfigError, match="--problems FILE"):
        own_problems.read(FileProblems())
    with pytest.raises(ConfigError, match=r"held_out_share=0\.5"):
        FileProblems(held_out_share=0.5)


def test_the_side_that_is_measured_on_must_hold_problems(tmp_path):
    def held_out(count):
        given = settings(json_files.write_jsonl(tmp_path / "some.jsonl", sums(count)))
        return {s for s in ("test", "validation") if own_problems.side(given, "stem", s)}

    count = next(n for n in range(3, 60) if len(held_out(n)) == 1)
    (there,) = held_out(count)
    full = recipes.get_recipe("problems")()
    for side in ("test", "validation"):
        recipe = dataclasses.replace(
            full,
            problems=settings(tmp_path / "some.jsonl"),
            evaluation=dataclasses.replace(full.evaluation, side=side),
        )
        if side == there:
            own_problems.refuse_misfit(recipe, TEXTS)
            continue
        with pytest.raises(ConfigError, match=rf"the {side} side.*--evaluation\.side"):
            own_problems.refuse_misfit(recipe, TEXTS)


def test_room_is_what_the_responses_asked_for_leave(tmp_path, monkeypatch):
    """All lengths are given, and --max-new-tokens is less than the recipe's own."""
    file = json_files.write_jsonl(
        tmp_path / "mine.jsonl", [{"prompt": f"{n:040}?", "gold": "1"} for n in range(60)]
    )
    recipe = dataclasses.replace(recipes.get_recipe("problems")(), problems=settings(file))
    engine = dataclasses.replace(recipe.engine, cache_length=64)
    recipe = dataclasses.replace(recipe, engine=engine, max_new_tokens=8)
    monkeypatch.setattr(run.sizes, "fitted", lambda *_: (_ for _ in ()).throw(InterruptedError))
    with pytest.raises(InterruptedError):
        run.train(recipe, tmp_path / "run")


def test_lines_without_tokens_or_room_are_named(tmp_path):
    bad = [
        {"prompt": "\u2207 x?", "gold": "1"},
        {"prompt": "x" * 200, "gold": "1"},
        {"prompt": "y?", "gold": "1", "solution": "z" * 300},
    ]
    file = json_files.write_jsonl(tmp_path / "mine.jsonl", [*sums(60), *bad])
    recipe = dataclasses.replace(recipes.get_recipe("problems")(), problems=settings(file))
    recipe = dataclasses.replace(
        recipe.with_stage("sft", row_length=256),
        engine=dataclasses.replace(recipe.engine, cache_length=256),
    )
    with pytest.raises(ConfigError) as caught:
        own_problems.refuse_misfit(recipe, TEXTS)
    tokens, prompt, solution = str(caught.value).splitlines()
    assert "line 61 of" in tokens
    assert "has no token" in tokens
    assert "line 62" in prompt
    assert "a prompt of 201 tokens" in prompt
    assert "room for 160" in prompt
    assert "line 63" in solution
    assert "sft.row_length is 256" in solution
    elsewhere = dataclasses.replace(recipe, stages={"rl": recipe.stages["rl"]})  # solutions unread
    with pytest.raises(ConfigError) as caught:
        own_problems.refuse_misfit(elsewhere, TEXTS)
    assert len(str(caught.value).splitlines()) == 2


def test_a_run_keeps_its_problems_and_refuses_others(file, tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    own_problems.refuse_other(settings(file), run_dir)  # there is none yet
    own_problems.keep_copy(settings(file), run_dir)
    moved = json_files.write_jsonl(tmp_path / "moved.jsonl", sums(60))
    own_problems.refuse_other(settings(moved), run_dir)  # the same lines under another name
    more = json_files.write_jsonl(tmp_path / "more.jsonl", sums(61))
    with pytest.raises(ConfigError, match=r"60 lines and digest \w+, this is .* 61 .*--run-dir"):
        own_problems.refuse_other(settings(more), run_dir)
    recipe = dataclasses.replace(recipes.get_recipe("problems")(), problems=settings(file))
    assert own_problems.as_kept(recipe, run_dir).problems.file == run_dir / "problems.jsonl"


def test_answers_that_their_verifier_refuses_are_named_with_their_lines(tmp_path):
    wrong = {"prompt": "3+3=", "gold": "6", "solution":
             "<longcat_think>x</longcat_think><longcat_answer>7</longcat_answer>"}  # fmt: skip
    file = json_files.write_jsonl(tmp_path / "mine.jsonl", [*sums(5), wrong])
    posed = own_problems.read(settings(file)).posed
    with contextlib.closing(LocalVerifierPool(1)) as pool:
        judge = Judge(pool)
        own_admission.refuse_wrong_answers(settings(file), posed[:5], judge)
        with pytest.raises(ConfigError, match=r"line 6 of .*'math' calls wrong.*'7'"):
            own_admission.refuse_wrong_answers(settings(file), posed, judge)


def test_a_verifier_that_rewards_what_it_should_not_is_refused(file, tmp_path, monkeypatch):
    class Lenient:
        def verify(self, problem, response_text):
            return verdict.correct()

        def close(self):
            pass

    monkeypatch.setattr(own_admission.verifiers, "get_verifier", lambda name, **_: Lenient())
    refused = pytest.raises(VerifierError, match="'math' is not admitted")
    with contextlib.closing(LocalVerifierPool(1)) as pool, refused:
        own_admission.require(settings(file), Judge(pool), tmp_path)
    assert not (tmp_path / "admission.json").exists()


def small(file, **changes):
    """The recipe, made so small that it runs in seconds and learns next to nothing."""
    full = recipes.get_recipe("problems")()
    posed = full.stages["rl"]
    sampling = dataclasses.replace(posed.sampling, max_new_tokens=20)
    engine = dataclasses.replace(
        full.engine, slots_per_replica=8, cache_length=48, prefill_lengths=(16,), prefill_members=8,
        narrow_slots=(), groups_per_replica=2, num_replicas=1,
    )  # fmt: skip
    full = full.with_stage(
        "rl",
        num_steps=2,
        checkpoint_every=1,
        curriculum=Curriculum(
            pass_rates=PassRates(ceilings=((0, 0.5),)),
            context=GrowingContext(limits=(16, 20), window=100_000),  # never grows; answers have 15
        ),
        scheduler=dataclasses.replace(posed.scheduler, groups_per_step=2),
        objective=longcat_objective(group_size=4, max_response_tokens=20),
        group_size=4,
        sampling=sampling,
        rows=4,
        row_length=48,
        learns_from_all=True,  # nothing is right yet
        reward=dataclasses.replace(posed.reward, malformed=-0.5),
    )
    full = full.with_stage(
        "sft",
        num_steps=150,
        optimizer=AdamW(schedule=WarmupConstant(peak=1e-2, warmup_steps=8)),
        rows=4,
        row_length=64,
    )
    return dataclasses.replace(
        full,
        model=tiny.smallest_config(),
        model_of_start=False,
        problems=settings(file),
        engine=engine,
        verifiers=LocalVerifiers(num_workers=1),
        evaluation=dataclasses.replace(full.evaluation, num_problems=4, sampling=sampling),
        **changes,
    )


def test_where_fewer_are_held_out_than_asked_for_all_are_posed(file, monkeypatch):
    full = small(file)
    asked = dataclasses.replace(full.evaluation, num_problems=500)
    session = object.__new__(Session)  # with neither pool nor model
    session.recipe = dataclasses.replace(full, evaluation=asked)
    held_out = functools.partial(demonstrations.held_out, session.recipe, split="test", count=500)
    session.posed = {domain: held_out(domain) for domain in ("stem", "logic")}
    session.texts = Texts(tokenizer=AsciiTokenizer())
    session.judge = lambda problems, rollouts: [verdict.wrong("no")] * len(rollouts)
    monkeypatch.setattr(Session, "sampler", lambda session, weights, progress: nothing_said)
    result, samples = session.evaluate({}, stage="sft", domains=("stem", "logic"))
    posed = {p.problem.uid for p in own_problems.side(settings(file), "stem", "test")}
    assert list(result.domains) == ["stem"]
    assert set(result.domains["stem"].correct) == posed
    assert {record["stage"] for record in samples} == {"sft"}


def nothing_said(problems, num_samples, sampling):
    """Answers without a text, in the place of a sampler."""
    return [
        [fake_rollout(Ticket(number=-1, problem=posed), 0, 0)] * num_samples for posed in problems
    ]


def test_a_place_for_the_run_that_cannot_be_is_said_before_it_starts(file):
    for place in (file, file / "run"):
        with pytest.raises(ConfigError, match=r"--run-dir .* cannot be written to.*no directory"):
            run.train(small(file), place)


def test_stages_of_another_model_are_not_taken(file, tmp_path):
    other = dataclasses.replace(small(file), model=tiny.smallest_config(hidden_size=48))
    configs.open_run(other, tmp_path / "other")
    json_files.write_json(tmp_path / "other" / "stages" / "sft" / "done.json", {})
    with pytest.raises(ConfigError, match=r"hidden_size=48.*has 32"):
        run.train(small(file), tmp_path / "run", only="rl", source=tmp_path / "other")
    assert not (tmp_path / "run").exists()


def test_a_seed_below_0_and_a_stage_that_is_not_there_are_said_before_there_is_a_run(
    file, tmp_path
):
    with pytest.raises(ConfigError, match="seed=-1 must be at least 0"):
        run.train(small(file, seed=-1), tmp_path / "run")
    with pytest.raises(ConfigError, match="'rl_stem' is unknown"):
        run.train(small(file), tmp_path / "run", only="rl_stem")
    assert not (tmp_path / "run").exists()


@pytest.mark.release
@pytest.mark.timeout(600)
def test_a_run_on_a_file_from_cold_start_to_evaluation_and_on_from_there(file, tmp_path, caplog):
    recipe, directory = small(file), tmp_path / "run"
    run.train(recipe, directory)
    done = {
        stage: json.loads((directory / "stages" / stage / "done.json").read_text())
        for stage in ("sft", "rl")
    }
    assert done["sft"]["num_pairs"] > 150
    assert done["rl"]["tickets"]["trained"] == 4
    admitted = json.loads((directory / "admission.json").read_text())
    assert admitted["num_answers_judged"] == 60
    assert admitted["verdicts_by_verifier"]["math"] > 100
    trained = json.loads((directory / "stages" / "rl" / "metrics.jsonl").read_text().split("\n")[0])
    assert trained["judged/verdicts"].keys() <= {"correct", "wrong"}
    (kept,) = own_problems.recipes_of(directory)
    assert kept is not None
    assert kept.problems.file == directory / "problems.jsonl"
    assert trained["curriculum/max_new_tokens"] == 16
    assert trained["curriculum/num_known"] > 0
    assert trained["completions/max_length"] <= 16

    checkpoints = directory / "stages" / "rl" / "checkpoints"
    assert checkpoint.steps(checkpoints) == [1, 2]
    for path in (checkpoints / "2").rglob("*"):
        if path.is_file():
            os.truncate(path, path.stat().st_size // 2)
    (directory / "stages" / "rl" / "done.json").unlink()
    run.train(recipe, directory)  # again: only the last step is left to do
    assert "passed over a damaged checkpoint, checkpoint 2" in caplog.text
    assert "going on from step 1" in caplog.text
    lines = (directory / "stages" / "rl" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    again = json.loads((directory / "stages" / "rl" / "done.json").read_text())
    assert again["wall_s"] > again["earlier_s"] >= json.loads(lines[0])["time_s"] > 0
    other = recipe.with_stage("rl", max_issues=7)
    with pytest.raises(ConfigError, match=r"stages\.rl\.max_issues: the run has \d, you gave 7"):
        run.train(other, directory)

    bare = json_files.write_jsonl(
        tmp_path / "bare.jsonl", [{**r, "solution": r["gold"]} for r in sums(60)]
    )
    lines = [{k: v for k, v in json.loads(x).items() if k != "solution"} for x in bare.open()]
    further = small(json_files.write_jsonl(bare, lines), start_from=directory)
    run.train(further, tmp_path / "further")
    stages = sorted(path.name for path in (tmp_path / "further" / "stages").iterdir())
    assert stages == ["before", "rl"]
    config = configs.load(tmp_path / "further")
    assert config.model == recipe.model
    other = dataclasses.replace(further, model=tiny.smallest_config(hidden_size=48))
    with pytest.raises(ConfigError, match=r"hidden_size=32.*has 48"):
        run.train(other, tmp_path / "other")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_of_the_docs_runs_as_printed(tmp_path, monkeypatch):
    """Save that its training is cut short by overrides."""
    blocks = re.findall(r"```\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (example,) = (block for block in blocks if "<<'END'" in block)
    script, commands = example.rsplit("\nEND\n", 1)
    subprocess.run(["bash", "-c", f"{script}\nEND\n"], cwd=tmp_path, check=True)
    assert len((tmp_path / "mine.jsonl").read_text().splitlines()) == 1000
    monkeypatch.chdir(tmp_path)
    train, evaluation = (command.split()[1:] for command in commands.splitlines())
    short = [*reading.LITTLE, "--sft.num-steps", "2", "--sft.rows", "2"]
    assert cli.main([*train, *short]) == 0
    assert cli.main([*evaluation, *reading.EVAL]) == 0
