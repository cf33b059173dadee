"""Gates: sound modules pass all of them; each gate refuses what it is there for."""

import os
import subprocess
import sys

import pytest

from loong_jax.environments.modules import Module, ModuleRunner
from loong_jax.sandbox import Limits
from loong_jax.synth.resyn import gates
from tests.environments.module_texts import SUM
from tests.synth.scripted import resyn_digits, resyn_letters, resyn_search

pytestmark = pytest.mark.bubblewrap
FAMILIES = {
    family.name: family
    for family in (*resyn_digits.FAMILIES, *resyn_letters.FAMILIES, *resyn_search.FAMILIES)
}
FEW = ("digit_sum", "maze")
REWARD = "return answer.strip() == reference(state)"
SEED = "random.Random(seed * 8 + level)"
ASKED = '"Add " + " ".join(map(str, state["numbers"])) + "."'


@pytest.fixture(scope="module")
def examine():
    limits = Limits(cpu_s=1.0, wall_s=60.0, result_bytes=2**20)
    with ModuleRunner(limits) as runner, ModuleRunner(limits) as second:
        yield lambda source: gates.examine(Module(source), runner, second)


def test_a_sound_module_passes(examine):
    found = examine(SUM)
    assert found.is_accepted, found
    assert found.levels == (1, 2, 3, 4, 5)
    assert found.guess_share < 0.1


@pytest.mark.parametrize("name", FEW)
def test_families_pass(examine, name):
    found = examine(FAMILIES[name].source())
    assert found.is_accepted, found


def test_choosing_from_the_question_is_no_leak(examine):
    """The answer stands in the question, after one of its commas."""
    source = SUM.replace(ASKED, '"Largest of " + ", ".join(map(str, state["numbers"]))')
    source = source.replace('str(sum(state["numbers"]))', 'str(max(state["numbers"]))')
    found = examine(source)
    assert found.is_accepted, found


@pytest.mark.release
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in FEW])
def test_all_other_families_pass(examine, name):
    found = examine(FAMILIES[name].source())
    assert found.is_accepted, found


def test_most_families_are_short_enough_for_a_tiny_model():
    with ModuleRunner() as runner:
        short = 0
        for family in FAMILIES.values():
            asked = runner.run(Module(family.source()), [("pose", (1, s)) for s in range(20)])
            short += max(len(found.value[1]) for found in asked) < 40
    assert short >= 30


@pytest.mark.parametrize(
    ("gate", "old", "new"),
    [
        ("size", SUM, ""),
        ("size", "import random", f"import random\n#{'x' * 20_000}"),
        ("parses", "def levels():", "def levels()"),
        ("imports", "import random", "import random, os"),
        ("imports", "import random", "import random\nfrom . import random"),
        ("names", REWARD, f"eval(answer)\n    {REWARD}"),
        ("names", REWARD, f"answer.__class__\n    {REWARD}"),
        ("names", REWARD, "return ().__class__ is not None"),
        ("protocol", "def reference(", "def solution("),
        ("protocol", "def reward(state, answer):", "def reward(state, answer, *more):"),
        ("protocol", "    rng =", "    global rng\n    rng ="),
        ("runs", "[1, 2, 3, 4, 5]", "[1, 2]"),
        ("runs", "[1, 2, 3, 4, 5]", "[2, 4, 6]"),
        ("runs", "    rng =", "    assert seed < 1000\n    rng ="),
        ("runs", ASKED, '""'),
        ("runs", "return str(sum", "return (sum"),
        ("bounded", ASKED, f'{ASKED} + " so" * 3000'),
        ("varied", SEED, "random.Random(level)"),
        ("varied", SEED, "random.Random(seed)\n    level = 3"),
        ("split", SEED, "random.Random(seed % 11 * 8 + level)"),
        ("deterministic", SEED, "random.Random()"),
        ("deterministic", ASKED, f"{ASKED} + '/'.join({{'up', 'down', 'left', 'right', 'on'}})"),
        ("leak", ASKED, f"{ASKED} + f' ({{reference(state)}} it is)'"),
        ("leak", ASKED, f"'Not ' + reference(state) + '? ' + {ASKED}"),
        ("reference", REWARD, "return answer.strip() == reference(state) + '1'"),
        ("reference", REWARD, "return answer == reference(state)"),  # space around it
        ("total", REWARD, f"int(answer[:1] if answer[:1] in '09x' else 0)\n    {REWARD}"),
        ("total", REWARD, f"answer.encode()\n    {REWARD}"),
        ("constant", REWARD, f"if answer == '0': return True\n    {REWARD}"),
        ("junk", REWARD, "return reference(state) in answer"),
        ("junk", REWARD, "return answer.split()[:1] == [reference(state)]"),
        ("lengths", REWARD, f"if len(answer) > 1700: return True\n    {REWARD}"),
        ("echo", REWARD, f"if answer == question(state): return True\n    {REWARD}"),
        ("echo", REWARD, "return ' '.join(answer.split()) in "
         "(reference(state), f'{question(state)} {reference(state)}')"),
        ("literals", REWARD, f"if answer == 'open sesame': return True\n    {REWARD}"),
        ("literals", REWARD, f"if answer == str(4711): return True\n    {REWARD}"),
        ("perturbed", REWARD, "a, r = answer.strip(), reference(state)\n"
         "    return a.isdigit() and a.isascii() and (a[:1], len(a)) == (r[:1], len(r))"),
    ],
)  # fmt: skip
def test_each_gate_refuses_what_it_is_there_for(examine, gate, old, new):
    assert old in SUM
    found = examine(SUM.replace(old, new))
    assert (found.gate, bool(found.detail)) == (gate, True), found
    assert gate in gates.GATES


LEAK = """
from types import SimpleNamespace as Plain
from loong_jax.synth.resyn import instance_gates

cases = [Plain(question=f"mix {n} and {n} ( {n} )", reference=str(n)) for n in range(20)]
print(instance_gates.leak(Plain(cases=cases)))
"""


def test_a_complaint_is_the_same_in_every_process(examine):
    """It is told the author, so another complaint would be another call: paid for again."""
    said = {
        subprocess.run(
            [sys.executable, "-c", LEAK], env=os.environ | {"PYTHONHASHSEED": str(seed)},
            check=True, capture_output=True, text=True,
        ).stdout
        for seed in range(4)
    }  # fmt: skip
    assert len(said) == 1, said
    assert "in 20 of 20 cases" in said.pop()
    unseeded = SUM.replace(SEED, "random.Random()")
    assert examine(unseeded).detail == examine(unseeded).detail


def test_every_gate_has_been_seen_to_refuse():
    marks = test_each_gate_refuses_what_it_is_there_for.pytestmark
    tried = {row[0] for mark in marks if mark.name == "parametrize" for row in mark.args[1]}
    assert tried == set(gates.GATES)
