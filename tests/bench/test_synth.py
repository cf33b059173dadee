"""Choosing, drawing and comparing by themselves, and the parts once from end to end."""

import dataclasses
from collections import Counter

import pytest

from loong_jax import bench, cli
from loong_jax.bench.synth import choosing, command, comparing, figures, loong, resyn, settings
from loong_jax.bench.synth.instances import Instance, demonstrations, draw, spread
from loong_jax.bench.synth.runs import Arm, Trained, train
from loong_jax.bench.synth.settings import Habits, LoongSize, ResynSize, Size
from loong_jax.data import json_files, packages, problem_files
from loong_jax.data.packages import Package
from loong_jax.data.response import parse_response
from loong_jax.environments import modules
from loong_jax.environments.modules import Module, Outcome
from loong_jax.environments.problem import split_of
from loong_jax.errors import ConfigError
from loong_jax.launch import own_problems
from loong_jax.synth.scripted import resyn_roles
from loong_jax.verifiers import get_verifier
from tests.doubles import tiny

NAMES = ("product", "digit_sum", "alternating", "median")  # guesses are right now and then
RESYN = ResynSize(
    environments=(2, 1), instances=24, unseen=2, levels=(1, 2), cold_levels=1, demonstrations=20,
    cold_steps=150, steps=2, groups_per_step=2, tests=2, fewest_tests=2, samples=2,
)  # fmt: skip


def package(name, source=None, chars=(10, 12, 14, 16, 18)):
    return Package(
        name=name, module=Module(source or resyn_roles.FAMILIES[name].source()),
        levels=(1, 2, 3, 4, 5), domain="logic", licence="Apache-2.0", author="scripted", title=name,
        about={"prompt_chars": list(chars)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    place = tmp_path_factory.mktemp("packages")
    for name in NAMES:
        packages.write(place, package(name), [])
    return place


# ---- choosing


def test_environments_count_once_that_share_verifier_code_or_question_template():
    one = package("product")
    source = one.module.source
    renamed = package("renamed", source.replace("answer", "said"))  # the same code in effect
    worded = package("worded", source.replace("% 7", "// 7 + 1"))  # another code, the same words
    other = package("digit_sum")
    asked = {p.name: ["mul 3*4", "mul 2*6"] for p in (one, worded)}
    asked |= {"renamed": ["times 3*4", "times 5*6"], "digit_sum": ["sum 3+4", "sum 9+1"]}
    assert choosing.distinct([one, renamed, worded, other], asked) == [one, other]
    assert choosing.distinct([renamed, one], asked) == [renamed]
    asked["digit_sum"] = asked["renamed"]  # whose template counts for nothing where it is left out
    assert choosing.distinct([one, renamed, other], asked) == [one, other]
    with pytest.raises(ConfigError, match="holds 2 environments"):
        choosing.require([one, other], 3, "somewhere")


def test_an_environment_fits_by_its_longest_questions_at_the_levels_asked():
    one = package("product", chars=(10, 12, 14, 39, 60))
    assert choosing.fits(one, 4, 39)
    assert not choosing.fits(one, 4, 38)
    assert not choosing.fits(one, 5, 39)
    assert not choosing.fits(dataclasses.replace(one, levels=(1, 2, 3), about={}), 4, 39)


# ---- instances


def of_level(level, count):
    return [
        Instance(package=package("product"), level=level, seed=seed, prompt=f"{level} {seed}",
                 state={})
        for seed in range(count)
    ]  # fmt: skip


def test_instances_are_of_all_levels_alike_and_so_many_as_asked():
    chosen = spread([of_level(1, 2), of_level(2, 9), of_level(3, 9)], 12)
    assert Counter(one.level for one in chosen) == {1: 2, 2: 5, 3: 5}
    assert len({one.uid for one in chosen}) == 12
    with pytest.raises(ConfigError, match="12 instances"):
        spread([of_level(1, 4), of_level(2, 7)], 12)


class Repeating:
    """Every level poses the same fifty questions."""

    def run(self, module, calls):
        return [Outcome("ok", [{}, f"turn {seed % 50}"]) for _, (_, seed) in calls]


def test_a_level_gives_no_question_that_a_lower_one_gave():
    wanted = {"train": 10, "test": 3}
    low = draw(Repeating(), package("product"), 1, wanted)
    assert {side: len(ones) for side, ones in low.items()} == wanted
    assert all(one.side == side for side, ones in low.items() for one in ones)
    taken = {one.canonical for ones in low.values() for one in ones}
    assert len(taken) == 13
    high = draw(Repeating(), package("product"), 2, {"train": 99, "test": 99}, taken)
    given = [one.canonical for ones in high.values() for one in ones]
    assert len(given) == len(set(given))
    assert not taken & set(given)
    validation = sum(split_of(problem_files.canonical(f"turn {n}"), 0.2) == "validation"
                     for n in range(50))  # fmt: skip
    assert len(given) == 50 - 13 - validation


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (dict(environments=(6, 12)), "must fall"),
        (dict(instances=100), "no multiple of 24"),
        (dict(levels=(1, 5)), "1..4"),
        (dict(levels=(3, 1)), "must name levels that rise"),
        (dict(tests=8), "fewest_tests=12"),
        (dict(levels=()), "must name levels that rise"),
        (dict(cold_levels=5), "1..4"),
    ],
)
def test_refuses_sizes_that_cannot_be(wrong, said):
    with pytest.raises(ConfigError, match=said):
        dataclasses.replace(settings.BREADTH, **wrong)


@pytest.mark.bubblewrap
def test_arms_nest_and_train_on_equally_many_instances_none_of_which_is_tested(directory, tmp_path):
    found = resyn.material(directory, RESYN)
    roles = found.about()
    assert {role: len(names) for role, names in roles.items()} == {
        "trained": 2, "shown": 1, "never_shown": 1,
    }  # fmt: skip
    broad, deep = resyn.arms(tmp_path, found, RESYN)
    assert (broad.name, deep.name) == ("2x12", "1x24")
    shown = {}
    for arm in (broad, deep, Arm(name="cold", stage="sft", recipe=_cold(tmp_path, found))):
        recipe = arm.recipe(3)
        posed = problem_files.read(recipe.problems.file).posed
        share = recipe.problems.held_out_share
        sides = {
            side: {
                one.problem.uid for one in posed if split_of(one.problem.canonical, share) == side
            }
            for side in ("train", "validation", "test")
        }
        assert sides["validation"] == set()
        assert sides["test"] == {one.uid for one in found.tests(RESYN)}
        assert len(sides["test"]) == recipe.evaluation.num_problems == (2 * 3 + 2 * 2) * 2
        shown[arm.name] = sides["train"]
        assert recipe.seed == (0 if arm.name == "cold" else 3)
    assert len(shown["2x12"]) == len(shown["1x24"]) == RESYN.instances
    environments = {name: {uid.partition("/")[0] for uid in uids} for name, uids in shown.items()}
    assert environments["1x24"] < environments["2x12"] == set(roles["trained"])
    assert environments["cold"] == set(roles["trained"] + roles["shown"])
    by_group = found.groups_of_learning(RESYN)
    counted = {g: sum(map(chosen, uids(found, RESYN))) for g, chosen in by_group.items()}
    assert list(counted.values()) == [8, 4, 4, 4]


@pytest.mark.bubblewrap
def test_levels_between_and_beyond_those_posed_are_held_out_from_rl(directory):
    size = dataclasses.replace(RESYN, environments=(2,), levels=(1, 3), cold_levels=3)
    found = resyn.material(directory, size)
    assert {one.level for one in resyn.instances(found, 2, size)} == {1, 3}
    assert {one.level for one in found.tests(size)} == {1, 2, 3, 4}
    by_group = found.groups_of_learning(size)
    assert list(by_group) == [
        "seen environments, levels 1 and 3, posed",
        "seen environments, level 2, between those posed, in the cold start alone",
        "seen environments, level 4, beyond those posed, shown by nothing",
        "unseen environments, in the cold start alone, levels 1 and 3",
        "unseen environments, never shown, levels 1 and 3",
    ]
    asked = uids(found, size)
    assert [sum(map(chosen, asked)) for chosen in by_group.values()] == [8, 4, 4, 4, 4]
    assert len(asked) == 24  # and no other
    levels = [{uid.split("/")[1] for uid in asked if chosen(uid)} for chosen in by_group.values()]
    assert levels == [{"1", "3"}, {"2"}, {"4"}, {"1", "3"}, {"1", "3"}]
    posed_alone = dataclasses.replace(size, other_levels=False)
    assert {one.level for one in found.tests(posed_alone)} == {1, 3}
    below = found.groups_of_learning(dataclasses.replace(size, levels=(2,)))
    assert any("level 1, below those posed" in name for name in below)


def written_by(habits, count=120):
    """Right answers of the module, and what a solver of these habits wrote."""
    runner, environment = modules.shared_runner(), package("digit_sum")
    shown = draw(runner, environment, 2, {"train": count})["train"]
    lines = demonstrations(runner, shown, 72, habits, "logic")
    calls = [("reference", (one.state,)) for one in shown]
    right = [found.value for found in runner.run(environment.module, calls)]
    return right, [parse_response(line["solution"]) for line in lines], lines


@pytest.mark.bubblewrap
def test_careful_demonstrations_write_every_value_and_hurried_ones_none():
    right, written, _ = written_by(Habits(careful_share=0.25))
    careful = [one for one in written if one.thinking != "~"]
    assert 15 < len(careful) < 45
    assert [one.answer for one in written] == right
    assert all(one.thinking.endswith(f"={one.answer}") for one in careful)


@pytest.mark.bubblewrap
def test_guesses_are_hurried_and_answer_another_instance_under_a_label_of_their_own(tmp_path):
    right, written, lines = written_by(Habits(careful_share=0.5, guess_share=1.0))
    wrong = [one for one, answer in zip(written, right, strict=True) if one.answer != answer]
    assert 35 < len(wrong) < 75  # some of the sixty guesses are right by chance
    assert {one.thinking for one in wrong} == {"~"}
    assert {one.answer for one in wrong} <= set(right)
    json_files.write_jsonl(tmp_path / "lines.jsonl", lines)
    posed = problem_files.read(tmp_path / "lines.jsonl").posed[0]
    verifier = get_verifier("resyn")
    try:
        assert verifier.verify(posed.problem, posed.solution).is_correct
        other = posed.solution.replace(f">{posed.answer}<", ">no<")
        assert not verifier.verify(posed.problem, other).is_correct
    finally:
        verifier.close()


def test_refuses_habits_that_are_no_shares():
    with pytest.raises(ConfigError, match=r"careful_share=1\.5"):
        Habits(careful_share=1.5)
    with pytest.raises(ConfigError, match=r"guess_share=-0\.1"):
        Habits(guess_share=-0.1)


@pytest.mark.bubblewrap
def test_settings_may_be_chosen_on_problems_that_no_figure_is_of(directory, tmp_path):
    size = dataclasses.replace(RESYN, side="validation")
    found = resyn.material(directory, size)
    assert {one.side for one in found.tests(size)} == {"validation"}
    final = set(uids(resyn.material(directory, RESYN), RESYN))
    assert not final & set(uids(found, size))
    recipe = resyn.cold_start(tmp_path, found, size)
    assert recipe.evaluation.side == "validation"
    held_out = own_problems.side(recipe.problems, "logic", "validation")
    assert {one.problem.uid for one in held_out} == set(uids(found, size))
    assert own_problems.domains(recipe.problems) == ("logic",)


def uids(found, size):
    return [one.uid for one in found.tests(size)]


def _cold(place, found):
    recipe = resyn.cold_start(place, found, RESYN)
    taught = [one for one in problem_files.read(recipe.problems.file).posed if one.solution]
    assert taught
    assert all(parse_response(one.solution) for one in taught)
    return lambda seed: recipe


# ---- comparing


def result(correct, **changes):
    counts = {f"p{i}": [c, 2] for i, c in enumerate(correct)}
    return {
        "pass@1": sum(correct) / (2 * len(correct)),
        "evaluation": {
            "correct_per_problem": counts, "well_formed_per_problem": dict.fromkeys(counts, 2),
            "level_per_problem": dict.fromkeys(counts, 1), "greedy_per_problem": {},
            "pass_at": 0, "pass_at_correct_per_problem": {}, "mean_length": 5.0, "ungradable": 0,
            "isolation": {},
        },
        "consumed_tokens": 10.0, "cpu_s": 60.0, "wall_s": 61.0,
        "curves": {"rewards/mean": [0.1, 0.2]},
    } | changes  # fmt: skip


def test_gains_are_over_the_cold_start_by_group_and_over_another_arm():
    trained = Trained(
        base=result([0, 0, 0, 0, 2, 2]),
        by_arm={
            "broad": {0: result([2, 2, 2, 2, 2, 0]), 1: result([2, 2, 2, 2, 2, 0])},
            "deep": {0: result([0, 0, 2, 2, 2, 2]), 1: {"error": "status 1: it broke"}},
        },
    )
    groups = {
        "first": lambda uid: uid < "p4",
        "last": lambda uid: uid >= "p4",
        "none": lambda uid: False,
    }
    compared = comparing.compare(trained, groups, (0, 1), "deep")
    assert set(compared) == {"first", "last"}
    broad = compared["first"]["arms"]["broad"]
    assert broad["difference_points"] == pytest.approx(100)
    assert broad["is_disjoint"]
    assert broad["over_other_arm"]["difference_points"] == pytest.approx(50)
    assert broad["over_other_arm"]["seeds"] == 1
    deep = compared["first"]["arms"]["deep"]
    assert deep["errors"] == {"1": "status 1: it broke"}
    assert "over_other_arm" not in deep
    last = compared["last"]["arms"]["broad"]
    assert last["difference_points"] == pytest.approx(-50)
    assert not last["is_disjoint"]
    text = comparing.table("breadth", compared, "deep")
    assert "it broke" in text
    assert "scripted" in text
    assert "over deep +50.0" in text
    assert figures.png("breadth", compared, trained).startswith(b"\x89PNG")


# ---- LoongEnv


def test_seeds_differ_and_their_solutions_end_in_the_truth(monkeypatch):
    made = loong.rows(300)
    assert len({row["question"] for row in made}) == 300
    styles = Counter()
    for row in made:
        response = parse_response(loong.worked(row["question"]))
        assert response.answer == row["final_answer"]
        is_hurried = response.thinking == loong.HURRIED
        styles[is_hurried] += 1
        assert is_hurried or response.thinking.endswith(f"={row['final_answer']}")
    assert min(styles[True], styles[False]) > 100
    with pytest.raises(ValueError, match="no seed"):
        loong.worked("What is 2 * 3?")
    monkeypatch.setattr(loong, "DRAWS_PER_SEED", 1)
    with pytest.raises(ConfigError, match="more than there are"):
        loong.rows(3000)


# ---- the command


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (dict(parts="learning,colour"), "must name some of"),
        (dict(seeds=()), "at least one seed"),
        (dict(seeds=(1, 1)), "each once"),
        (dict(jobs=0), "jobs=0"),
    ],
)
def test_refuses_options_that_cannot_be(wrong, said):
    with pytest.raises(ConfigError, match=said):
        command.Options(**wrong)


def test_it_is_a_bench_that_teaches(capsys):
    assert bench.get_bench("synth") is command.main
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", "synth", "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    for word in ("--parts", "--packages", "scripted"):
        assert word in shown
    for option in ("learning.steps", "learning.side", "breadth.steps", "loong.items"):
        assert f"--size.{option}" in shown


def test_calibration_needs_no_model(tmp_path):
    chosen = command.Options(work_dir=tmp_path, parts="calibration", draws=5)
    found = command.measure(chosen, say=lambda text: None)
    assert set(found["parts"]) == {"calibration"}
    assert (tmp_path / "charts" / "calibration.png").read_bytes().startswith(b"\x89PNG")


def small(monkeypatch):
    """A model that learns the form of answers in little time; some of its guesses are right."""
    monkeypatch.setattr(settings, "model", tiny.smallest_config)
    monkeypatch.setattr(settings, "SLOTS", 16)


@pytest.mark.release
@pytest.mark.bubblewrap
@pytest.mark.timeout(900)
def test_learning_and_breadth_once_through_and_never_again(directory, tmp_path, monkeypatch):
    small(monkeypatch)
    chosen = command.Options(
        work_dir=tmp_path / "work", packages=directory, parts="learning,breadth", seeds=(0,),
        jobs=1, max_minutes=8,
        size=Size(learning=dataclasses.replace(RESYN, environments=(1,)), breadth=RESYN),
    )  # fmt: skip
    said = []
    found = command.measure(chosen, say=said.append)
    (arm,) = found["parts"]["learning"]["runs"]
    assert arm == "1x24"
    runs = found["parts"]["breadth"]["runs"]
    assert set(runs) == {"2x12", "1x24"}
    for by_seed in runs.values():
        assert by_seed[0]["steps"] == RESYN.steps
    for part, count in (("learning", 4), ("breadth", 3)):
        assert len(found["parts"][part]["groups"]) == count
        assert (tmp_path / "work" / "charts" / f"{part}.png").exists()
    json_files.write_json(tmp_path / "all.json", json_files.without_nan(found))
    said.clear()
    assert command.measure(chosen, say=said.append)["parts"]["breadth"]["runs"] == runs
    assert any("2 of 2 runs" in line for line in said)


@pytest.mark.release
@pytest.mark.bubblewrap
@pytest.mark.timeout(900)
def test_three_ways_to_go_on_with_what_loongenv_made(tmp_path, monkeypatch):
    small(monkeypatch)
    size = LoongSize(
        seeds=200, items=4, demonstrations=60, cold_steps=20, steps=1, groups_per_step=1, tests=4,
        samples=2,
    )  # fmt: skip
    found = loong.material(loong.make_items(tmp_path / "written", size, print), size)
    about = found.about()
    assert about["synthetic_problems"] == about["seeds_in_rl"] > 0
    assert about["held_out_seeds"] == 4
    asked = {
        part: {line["prompt"] for line in getattr(found, part)}
        for part in ("worked", "synthetic", "seeds", "tests")
    }
    assert not asked["tests"] & (asked["worked"] | asked["synthetic"] | asked["seeds"])
    assert not asked["synthetic"] & (asked["worked"] | asked["seeds"])
    arms = loong.arms(tmp_path, found, size)
    assert [arm.stage for arm in arms] == ["rl", "sft_continued", "rl"]
    trained = train(
        tmp_path / "trained", loong.cold_start(tmp_path, found, size), arms[1:2], (0,),
        jobs=1, timeout_s=480, say=print,
    )  # fmt: skip
    (by_seed,) = trained.by_arm.values()
    assert by_seed[0]["steps"] == 1
    assert by_seed[0]["stage"] == "sft_continued"
    compared = comparing.compare(trained, {"all": lambda uid: True}, (0,))
    assert compared["all"]["cold_start"]["problems"] == 4
