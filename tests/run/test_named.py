"""Parts of a stage by name on the command line; sizes that two parts share are said once."""

import contextlib
import dataclasses
import inspect
import json
import operator
import re
from pathlib import Path
from typing import get_args

import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax import cli, configs, options, own, recipes
from loong_jax.errors import ConfigError, LoongError
from loong_jax.orchestrator import baselines, changes
from loong_jax.orchestrator.changes import Assign
from loong_jax.orchestrator.dora import decide
from loong_jax.problems.response import FORMS
from loong_jax.rl.objectives import OBJECTIVES, TokenMean, clipped_gain, clips
from loong_jax.rl.optimizers import Muon
from loong_jax.rl.rewards import group_advantages
from loong_jax.run import named, train_help
from tests.orchestrator.ledgers import ledger_of


@pytest.fixture(scope="module")
def recipe():
    return recipes.get_recipe("rl")()


def chosen(recipe, words):
    return named.choose(recipe, words.split())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_has_a_name_and_the_sizes_of_its_stage(recipe, name):
    words = f"--seed 3 --rl.objective {name} --rl.group-size 4 --rl.sampling.max-new-tokens 40"
    got, left = chosen(recipe, words)
    assert got.stages["rl"].objective == OBJECTIVES[name](4, 40)
    assert left == ["--seed", "3", "--rl.group-size", "4", "--rl.sampling.max-new-tokens", "40"]
    assert configs.from_json(configs.to_json(got)) == got


@pytest.mark.parametrize("name", named.SCHEDULERS)
def test_every_scheduler_has_a_name_and_keeps_what_is_common(recipe, name):
    got, left = chosen(recipe, f"--rl.scheduler={name}")
    scheduler = got.stages["rl"].scheduler
    before = recipe.stages["rl"].scheduler
    shared = {"groups_per_step": before.groups_per_step, "max_staleness": before.max_staleness}
    make = named.SCHEDULERS[name]
    fields = inspect.signature(make).parameters
    usual = make(**{field: value for field, value in shared.items() if field in fields})
    assert type(scheduler) is type(usual)
    assert scheduler == usual or name == "dora"
    assert left == []


def test_an_optimizer_keeps_its_schedule(recipe):
    got, _ = chosen(recipe, "--rl.optimizer muon")
    rl, before = got.stages["rl"], recipe.stages["rl"]
    assert isinstance(rl.optimizer, Muon)
    assert rl.optimizer.schedule == before.optimizer.schedule
    assert chosen(recipe, "--rl.num-steps 3") == (recipe, ["--rl.num-steps", "3"])


def test_a_group_size_is_said_once(recipe):
    stage = chosen(recipe, "--rl.group-size 16")[0].stages["rl"]
    assert stage.group_size == stage.objective.reduction.group_size == 16


OWN_PARTS = """
import dataclasses
import jax.numpy as jnp
from loong_jax.rl.objectives import TokenMean

@dataclasses.dataclass(frozen=True)
class LeaveOneOut:
    scale: float = 1.0

    def advantages(self, rewards):
        return self.scale * (rewards - rewards.mean()) * len(rewards) / (len(rewards) - 1)

@dataclasses.dataclass(frozen=True)
class NoClip:
    def gain(self, ratio, advantage, logprob):
        return ratio * advantage, jnp.zeros(ratio.shape, bool)

class Bare:
    pass

def mine(stage):
    reduction = TokenMean()
    return dataclasses.replace(
        stage.objective, signal=LeaveOneOut(), clip=NoClip(), reduction=reduction
    )

def nothing(stage):
    return None

def bare(stage):
    return dataclasses.replace(stage.objective, signal=Bare())

def other_ratio(stage):
    return dataclasses.replace(stage.objective, ratio=LeaveOneOut())

def raising(stage):
    return stage.objectiv

def thawed(stage):
    return dataclasses.replace(stage.objective, signal=Thawed())

@dataclasses.dataclass
class Thawed(Bare):
    def advantages(self, rewards):
        return rewards

def taking_nothing():
    return None

def class_itself(stage):
    return dataclasses.replace(stage.objective, clip=NoClip)
"""


def test_a_signal_and_a_clip_of_your_own_compute_and_are_read_again(recipe, tmp_path):
    (tmp_path / "own.py").write_text(OWN_PARTS)
    got, left = chosen(recipe, f"--rl.objective {tmp_path}/own.py:mine")
    words = [*left, "--rl.objective.signal.scale", "2"]
    changed = options.parse_train("rl", "", got, words).config
    again = configs.from_json(json.loads(json.dumps(configs.to_json(changed))))
    assert again == changed
    objective = again.stages["rl"].objective
    assert objective.reduction == TokenMean()
    found = group_advantages([1.0, 0.0, None, 0.0, 0.0], objective.signal)
    np.testing.assert_allclose(found, [2, -2 / 3, 0, -2 / 3, -2 / 3], rtol=1e-6)
    gain, is_clipped = clipped_gain(jnp.array([9.0]), jnp.array([-1.0]), objective.clip)
    assert (gain.tolist(), is_clipped.tolist()) == ([-9.0], [False])
    (tmp_path / "own.py").write_text(OWN_PARTS.replace("scale", "factor"))
    with pytest.raises(ConfigError, match=r"OneOut has no field 'scale', and scale=2.0 .*: factor"):
        _ = dataclasses.replace(objective.signal).part


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("bare", "lacks advantages"),
        ("other_ratio", "Choose one of TokenRatio"),
        ("thawed", r"is neither a frozen dataclass.*Write @dataclasses.dataclass\(frozen=True\)"),
        ("raising", r"own.py:raising, line 37, raised AttributeError: .*objectiv"),
        ("class_itself", r"clip=NoClip is a class\. Give an object of it: NoClip\(\)"),
        ("taking_nothing", "it takes one argument, the stage"),
        ("nothing", r"returned None\. Name a function .* one of Obj"),
        ("TokenMean", r"own\.py:TokenMean is a class\. Name a function"),
        ("other", r"no class 'other'.* it has: .*mine, nothing, bare, "),
    ],
)
def test_what_is_wrong_in_a_file_of_your_own_is_one_line(recipe, tmp_path, function, said):
    (tmp_path / "own.py").write_text(OWN_PARTS)
    with pytest.raises(ConfigError, match=said):
        chosen(recipe, f"--rl.objective {tmp_path}/own.py:{function}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import math\nmath.nothing\n", r"own\.py, line 2, raised AttributeError"),
        ("import sys\nsys.exit(0)\n", r"own\.py.*raised SystemExit"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(tmp_path, text, said):
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(ConfigError, match=said):
        own.own_function(f"{tmp_path}/own.py:Mine")


@pytest.mark.parametrize("gain", ["jnp.sqrt(ratio - 1)", "jnp.abs(ratio - 1) ** 0.5"])
def test_a_gain_that_is_not_finite_is_refused(tmp_path, gain):
    """By its value, or by its slope on policy."""
    (tmp_path / "own.py").write_text(OWN_PARTS.replace("ratio * advantage,", f"{gain},"))
    clip = own.OwnPart(kind=f"{tmp_path}/own.py:NoClip", settings={})
    with pytest.raises(ConfigError, match=r"own\.py:NoClip: .* not finite at ratios \[.*1\.0"):
        clips.refuse_odd(clip)
    flat = OWN_PARTS.replace("ratio * advantage,", "0 * ratio + advantage,")
    (tmp_path / "flat.py").write_text(flat)
    with pytest.raises(ConfigError, match=r"flat\.py:NoClip: the slope of `gain` is 0"):
        clips.refuse_odd(own.OwnPart(kind=f"{tmp_path}/flat.py:NoClip", settings={}))
    (tmp_path / "sound.py").write_text(OWN_PARTS)
    clips.refuse_odd(own.OwnPart(kind=f"{tmp_path}/sound.py:NoClip", settings={}))


SCHEDULERS = """
import dataclasses
from loong_jax.orchestrator.baselines import SynchronousPolicy

@dataclasses.dataclass(frozen=True, kw_only=True)
class Slow(SynchronousPolicy):
    pass

class Empty:
    pass

Nothing = dataclasses.dataclass(Empty)
"""


def test_a_scheduler_of_your_own_is_one_module(recipe, tmp_path, monkeypatch, capsys):
    """As docs/how-to/add_scheduler.md has it: its class is named, and its fields are options."""
    page = (Path(__file__).parents[2] / "docs/how-to/add_scheduler.md").read_text()
    code, plain, look = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (command,) = re.findall(r"^loong train rl (.*)$", page.replace("\\\n", ""), re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("gentle.py").write_text(code)
    ahead = code.replace(
        "max_staleness: int = 2", "max_staleness: int = 7; max_ahead: float = 1.25"
    )
    Path("ahead.py").write_text(ahead)
    settings = chosen(recipe, "--rl.scheduler ahead.py:GentlePolicy")[0].stages["rl"].scheduler
    assert (settings.max_staleness, settings.max_ahead) == (2, 1.25)  # the recipe's and its own
    got, left = chosen(recipe, command.partition("--start-from runs/start ")[2])
    shown = train_help.settings_that_matter("rl", got, "")
    assert "--rl.scheduler gentle.py:GentlePolicy " in shown
    assert re.search(r"--rl.scheduler.on-policy-steps 10 +of gentle.py:GentlePolicy", shown)
    Path("gentle.py").write_text(code.replace("steps: int = 10", "steps: int = 10  # at first"))
    shown = train_help.settings_that_matter("rl", got, "")
    assert re.search(r"--rl.scheduler.on-policy-steps 10 +at first", shown)
    assert len(re.findall(r"--rl.scheduler.max-staleness", shown)) == 1
    changed = options.parse_train("rl", "", got, left).config
    scheduler = changed.stages["rl"].scheduler
    before = recipe.stages["rl"].scheduler
    assert scheduler.settings == {
        "groups_per_step": before.groups_per_step,
        "max_staleness": before.max_staleness,
        "on_policy_steps": 1,
    }
    again = configs.from_json(json.loads(json.dumps(configs.to_json(changed))))
    monkeypatch.chdir("/")
    assert again == changed
    policy = again.stages["rl"].scheduler
    ledger = ledger_of(replicas=(None,))
    ledger.groups_per_replica = 4
    assert decide(ledger, policy) == [Assign(0, 0)]
    assert (policy.mixes_versions, policy.needs) == (False, ())
    monkeypatch.syspath_prepend(tmp_path)
    exec(look, {})
    dora, gentle = capsys.readouterr().out.splitlines()
    assert (dora.split(":")[0], gentle.split(":")[0]) == ("DoraPolicy", "GentlePolicy")
    assert dora.partition(":")[2] != gentle.partition(":")[2]
    given, found = {}, {}
    exec(look, given)
    exec(plain, found)
    policies = (found["PlainPolicy"], baselines.SynchronousPolicy)
    rest = given["layout"], given["trace"], given["CostModel"]()
    ran = [given["simulate"](p(groups_per_step=8), *rest, num_steps=3) for p in policies]
    assert ran[0].step_s == ran[1].step_s


def test_the_page_of_schedulers_has_every_action_and_fields_that_there_are():
    page = (Path(__file__).parents[2] / "docs/how-to/add_scheduler.md").read_text()
    rows = re.findall(r"^\| `(.*?)` \|", page, re.MULTILINE)
    shown = dict(re.findall(r"([A-Z]\w+)\(([^)]*)\)", " ".join(rows)))
    actions = {
        kind.__name__: ", ".join(
            f"{field}={json.dumps(kind._field_defaults[field])}".replace("false", "False")
            if field in kind._field_defaults
            else field
            for field in kind._fields
        )
        for kind in get_args(changes.Action)
    }
    assert shown == actions
    ledger = ledger_of(replicas=(None,))
    view = page.partition("| of the view |")[2].partition("\n\n")[0]
    first = " ".join(re.findall(r"^\| (.*?) \|", view, re.MULTILINE)[1:])
    names = [re.sub(r"^\.", "tickets.", name) for name in re.findall(r"`(\.?[a-z_][\w.]*)", first)]
    assert len(names) > 12
    for name in names:
        operator.attrgetter(name)(ledger)


def test_a_scheduler_of_your_own_of_an_older_run_is_read():
    """Its common settings stood apart."""
    older = {"_kind": "own_policy", "kind": "/x/gentle.py:Gentle", "groups_per_step": 4}
    found = configs.from_json(older | {"max_staleness": 1, "settings": {"on_policy_steps": 5}})
    assert found == own.OwnPart(
        kind="/x/gentle.py:Gentle",
        settings={"groups_per_step": 4, "max_staleness": 1, "on_policy_steps": 5},
    )


def test_a_scheduler_in_a_recipe_of_your_own_is_kept_by_its_place(recipe, tmp_path):
    """A recipe's function may build it; so may one that takes the stage."""
    (tmp_path / "own.py").write_text(
        f"{SCHEDULERS}\ndef make(stage):\n    return Slow(groups_per_step=3)\n"
    )
    got, _ = chosen(recipe, f"--rl.scheduler {tmp_path}/own.py:make")
    made = own.own_function(f"{tmp_path}/own.py:Slow")(groups_per_step=3)
    stage = dataclasses.replace(recipe.stages["rl"], scheduler=made)
    assert stage.scheduler == got.stages["rl"].scheduler
    assert stage.scheduler == own.OwnPart(
        kind=f"{tmp_path}/own.py:Slow", settings={"groups_per_step": 3}
    )


def test_a_run_whose_file_is_gone_is_read_and_goes_on_once_it_is_there(recipe, tmp_path, capsys):
    """To look at a run nothing of yours is needed; the file may lie elsewhere by then."""
    file = tmp_path / "own.py"
    file.write_text(SCHEDULERS)
    run_dir = tmp_path / "run"
    config, _ = chosen(recipe, f"--rl.scheduler {file}:Slow")
    configs.open_run(config, run_dir)
    (tmp_path / "new").mkdir()
    moved = file.rename(tmp_path / "new" / "own.py")
    assert configs.load(run_dir) == config
    assert "--rl.scheduler own.py:Slow" in train_help.settings_that_matter("rl", config, "")
    assert cli.main(["train", "--run-dir", str(run_dir)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{file} is missing, which is to hold Slow. Put it there" in line
    there, _ = chosen(configs.load(run_dir), f"--rl.scheduler {moved}:Slow")
    named.try_own_parts(there)
    (change,) = configs.open_run(there, run_dir)
    assert (change.key, change.given) == ("stages.rl.scheduler.kind", f"{moved}:Slow")
    renamed = moved.with_name("other.py")
    renamed.write_text(SCHEDULERS + "\n\nclass Twin(Slow):\n    pass\n")
    other, _ = chosen(there, f"--rl.scheduler {renamed}:Slow")
    refused = pytest.raises(ConfigError, match=r"started with other settings: stages\.rl\.sched")
    with refused:  # the run's file is there
        configs.open_run(other, run_dir)
    moved.unlink()
    with refused:
        configs.open_run(chosen(there, f"--rl.scheduler {renamed}:Twin")[0], run_dir)
    (change,) = configs.open_run(other, run_dir)
    assert change.given == f"{renamed}:Slow"
    assert configs.load(run_dir) == other


def test_one_without_settings_and_one_that_is_no_scheduler(recipe, tmp_path):
    (tmp_path / "own.py").write_text(SCHEDULERS)
    got, _ = chosen(recipe, f"--rl.scheduler {tmp_path}/own.py:Slow")
    words = ["--rl.scheduler.groups-per-step", "5"]
    scheduler = options.parse_train("rl", "", got, words).config.stages["rl"].scheduler
    assert (scheduler.part.groups_per_step, scheduler.max_staleness) == (5, 0)
    with pytest.raises(ConfigError, match=r"lacks groups_per_step, .*add_scheduler\.md says"):
        chosen(recipe, f"--rl.scheduler {tmp_path}/own.py:Nothing")


UNKNOWN = r"is unknown\. Choose one of: [a-z-]+, [a-z-]+"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--rl.objective best", UNKNOWN),
        ("--rl.scheduler now", UNKNOWN),
        ("--rl.optimizer sgd", UNKNOWN),
        ("--rl.schedular dora", r"Write --rl\.scheduler\.$"),
    ],
)
def test_a_name_that_is_none_lists_those_that_are_or_like_it(recipe, words, said):
    with pytest.raises(ConfigError, match=said):
        chosen(recipe, words)


def test_what_the_tutorial_makes_is_taken(recipe, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/tutorials/own_model.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(code)
    assert "--rl.objective own.py:per_token" in page
    assert "train own.py:short" in page
    got, _ = chosen(recipe, "--rl.objective own.py:per_token")
    assert got.stages["rl"].objective.reduction == TokenMean()
    own = recipes.get_recipe("own.py:short")()
    assert (own.name, own.max_new_tokens) == ("short", 32)
    table = page.split("| form |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE)) == set(FORMS)


def test_own_parts_are_one_key_of_programs_and_refuse_their_settings_before_anything_runs(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "import dataclasses\n\n\n@dataclasses.dataclass(frozen=True)\nclass Halved:\n"
        "    scale: float = 0.5\n\n    def __post_init__(self):\n        assert self.scale > 0\n\n"
        "    def advantages(self, rewards):\n        return self.scale * rewards\n"
    )
    parts = [own.OwnPart(kind=f"{file}:Halved", settings={"scale": scale}) for scale in (1, 1, -1)]
    assert hash(parts[0]) == hash(parts[1])
    assert len(set(parts)) == 2
    recipe = recipes.get_recipe("rl")()
    for part in parts[::2]:
        objective = dataclasses.replace(recipe.stages["rl"].objective, signal=part)
        stage = dataclasses.replace(recipe.stages["rl"], objective=objective)
        changed = dataclasses.replace(recipe, stages=recipe.stages | {"rl": stage})
        if part.settings["scale"] > 0:
            named.try_own_parts(changed)
            assert part.advantages(2) == 2
        else:
            with pytest.raises(ConfigError, match=r"own\.py:Halved, line 9, raised Asse"):
                named.try_own_parts(changed)


def test_settings_of_your_own_have_any_name(tmp_path):
    """Names of ours among them, whose bounds are not theirs."""
    (tmp_path / "own.py").write_text(
        "import dataclasses\nfrom loong_jax import merge\n\n\n@dataclasses.dataclass(frozen=True)\n"
        "class Mine(merge.Method):\n    name: str = 'a'\n    tolerance: float = 2.0\n"
        "    threshold: str = 'auto'\n\n    def equation(self, given, known):\n"
        "        return given.base\n"
    )
    recipe = recipes.get_recipe("quickstart")()
    found, _ = named.choose(recipe, ["--fused.method", f"{tmp_path}/own.py:Mine"])
    part = found.stages["fused"].method
    assert (part.part.name, part.part.tolerance, part.part.threshold) == ("a", 2.0, "auto")


def test_a_file_without_a_part_is_refused(recipe, tmp_path):
    (tmp_path / "own.py").write_text(SCHEDULERS)
    for name in (f"{tmp_path}/own.py", f"{tmp_path}/own.py:"):
        with pytest.raises(ConfigError, match=r"own\.py:?' is not of the form FILE\.py:NAME"):
            chosen(recipe, f"--rl.scheduler {name}")


def test_a_file_that_is_misspelt_is_suggested(tmp_path):
    (tmp_path / "shrink.py").write_text("")
    with pytest.raises(ConfigError, match=r"Beside it is shrink\.py"):
        own.own_function(f"{tmp_path}/shrnk.py:Shrink")


SOUND = """
import dataclasses
import jax.numpy as jnp
from loong_jax.orchestrator.changes import Assign, Issue
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.rl.objectives import AsymmetricClip

@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine:
    groups_per_step: int = 2
    high: float = 3.0
    max_staleness = 1
    mixes_versions = False
    needs = ()

    def advantages(self, rewards):
        return rewards - rewards.mean()

    def gain(self, ratio, advantage, logprob):
        is_clipped = ratio > self.high
        return jnp.where(is_clipped, 0.0, ratio) * advantage, is_clipped

    def decide(self, view, now):
        return [Assign(0, 0)]

def mine(stage):
    return dataclasses.replace(stage.objective, signal=Mine(), clip=Mine())
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", ""),
        (
            "staleness = 1",
            "staleness = '1'",
            r"max_staleness='1' of \S*own\.py:Mine is not a whole",
        ),
        (
            "staleness = 1",
            "staleness = -1",
            r"max_staleness=-1 of \S*own\.py:Mine is not a whole number from 0 on",
        ),
        ("versions = False", "versions = 'no'", r"mixes_versions='no' of \S+ is not True or False"),
        ("needs = ()", "needs = ('SwapsWeights',)", r"needs=\('Sw.* is not a tuple of classes"),
        ("needs = ()", "needs = Assign", "needs=.* is not a tuple of classes of `protocols`"),
        ("return [Assign(0, 0)]", "pass", r"policy \S*own\.py:Mine decided None, which is no list"),
        (
            "return [Assign(0, 0)]",
            "return []",
            r"no event is to come .* `decide` of \S*py:Mine issue",
        ),
        ("[Assign(0, 0)]", "[Assign(99, 0)]", "99 is no replica"),
        ("Assign(0, 0)", "Issue(-1, 0)", "count is no whole number"),
        ("view, now", "view", r"own\.py:Mine raised TypeError: .*decide\(\) takes 2"),
        (
            "return [Assign(0, 0)]",
            "return DoraPolicy(groups_per_step=0)",
            r"line 24: groups_per_step=0",
        ),
        (
            "return [Assign(0, 0)]",
            "raise RuntimeError('boom')",
            r"own\.py:Mine, line 24, raised RuntimeError: boom",
        ),
        ("return rewards -", "rewards -", r"own\.py:Mine: `advantages` gave None, for 8 rewards"),
        ("return [Assign(0, 0)]", "return view.ticket", r"the view has no 'ticket'; docs.*lists"),
        (
            "return rewards - rewards.mean()",
            "return rewards[:1]",
            "Return one finite number for each",
        ),
        (
            "is_clipped = ratio > self.high",
            "assert ratio.max() < 3",
            r"line 20, raised Tracer.*jnp\.where",
        ),
        ("advantage, logprob):", "advantage):", r"own\.py:Mine raised TypeError: .*gain\(\) takes"),
        (
            ", is_clipped\n",
            "\n",
            r"own\.py:Mine: `gain` gave float32\[2, 3\], and must give float32\[2, 3\], b",
        ),
        (
            ", is_clipped\n",
            ", ratio[:1]\n",
            r"gave float32\[2, 3\], float32\[1, 3\], and .*Return these two",
        ),
        (
            ", is_clipped\n",
            ", 1.0 * is_clipped\n",
            r"and must give float32\[2, 3\], bool\[2, 3\]: what a token",
        ),
        ("return jnp.where(", "jnp.where(", "gave a NoneType, and must give"),
        ("clip=Mine()", "clip=0.2", r"own\.py:mine, line 27: clip: its class float lacks gain"),
        (
            "clip=Mine()",
            "clip=AsymmetricClip(eps_high=-1.0)",
            r"own\.py:mine, line 27: eps_high=-1\.0 is not in \[0, inf\]",
        ),
    ],
)
def test_parts_of_your_own_are_tried_before_anything_runs(recipe, tmp_path, old, new, said):
    file = tmp_path / "own.py"
    file.write_text(SOUND.replace(old, new))
    words = f"--rl.scheduler {file}:Mine --rl.objective {file}:mine"
    with pytest.raises(LoongError, match=said) if said else contextlib.nullcontext():
        named.try_own_parts(chosen(recipe, words)[0])
