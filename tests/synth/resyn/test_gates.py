"""Gates: sound modules pass all of them; each gate refuses what it is there for."""

import os
import random
import subprocess
import sys

import pytest

from loong_jax.environments.modules import Module, ModuleRunner
from loong_jax.sandbox import Limits
from loong_jax.synth.resyn import gates
from tests.environments.module_texts import SUM
from tests.sweeps import thinned
from tests.synth.scripted import resyn_defects
from tests.synth.scripted.resyn_families import FAMILIES

pytestmark = pytest.mark.bubblewrap
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


@pytest.mark.parametrize("name", thinned(FAMILIES, 0, -1))
def test_families_pass(examine, name):
    found = examine(FAMILIES[name].source())
    assert found.is_accepted, found


def test_choosing_from_the_question_is_no_leak(examine):
    """The answer stands in the question, after one of its commas."""
    source = SUM.replace(ASKED, '"Largest of " + ", ".join(map(str, state["numbers"]))')
    source = source.replace('str(sum(state["numbers"]))', 'str(max(state["numbers"]))')
    found = examine(source)
    assert found.is_accepted, found


# what would pay for something else than solving among them, on questions of one number and of many
@pytest.mark.parametrize("source", thinned([SUM, FAMILIES["subset_sum"].source()], 0))
@pytest.mark.parametrize("name", resyn_defects.CHANGES)
def test_no_planted_defect_of_code_passes_the_gates(examine, source, name):
    gate, _ = resyn_defects.CHANGES[name]
    found = examine(resyn_defects.planted(source, name, random.Random(0)))
    assert not found.is_accepted
    assert found.gate == gate or source != SUM


@pytest.mark.parametrize("name", ["answer_leaked", "answer_in_note"])
@pytest.mark.parametrize("family", ["subset_sum", "walk"])
def test_an_answer_of_several_words_leaks_too(examine, family, name):
    source = resyn_defects.planted(FAMILIES[family].source(), name, random.Random(0))
    assert examine(source).gate == "leak"


REFUSED = [  # gate, and a change of the module that it is there for, beside those of CHANGES
    ("size", SUM, ""),
    ("size", "import random", f"import random\n#{'x' * 20_000}"),
    ("imports", "import random", "import random, os"),
    ("imports", "import random", "import random\nfrom . import random"),
    ("names", REWARD, f"answer.__class__\n    {REWARD}"),
    ("names", REWARD, "return ().__class__ is not None"),
    ("protocol", "def reward(state, answer):", "def reward(state, answer, *more):"),
    ("protocol", "    rng =", "    global rng\n    rng ="),
    ("runs", "[1, 2, 3, 4, 5]", "[1, 2]"),
    ("runs", "[1, 2, 3, 4, 5]", "[2, 4, 6]"),
    ("runs", "    rng =", "    assert seed < 1000\n    rng ="),
    ("runs", ASKED, '""'),
    ("runs", "return str(sum", "return (sum"),
    ("bounded", ASKED, f'{ASKED} + " so" * 3000'),
    ("varied", SEED, "random.Random(seed)\n    level = 3"),
    ("split", SEED, "random.Random(seed % 11 * 8 + level)"),
    ("leak", ASKED, f"'Not ' + reference(state) + '? ' + {ASKED}"),
    ("reference", REWARD, "return answer == reference(state)"),  # space around it
    ("total", REWARD, f"int(answer[:1] if answer[:1] in '09x' else 0)\n    {REWARD}"),
    ("junk", REWARD, "return answer.split()[:1] == [reference(state)]"),
    ("lengths", REWARD, f"if len(answer) > 1700: return True\n    {REWARD}"),
    ("echo", REWARD, "return ' '.join(answer.split()) in "
     "(reference(state), f'{question(state)} {reference(state)}')"),
    ("literals", REWARD, f"if answer == str(4711): return True\n    {REWARD}"),
    ("perturbed", REWARD, "a, r = answer.strip(), reference(state)\n"
     "    return a.isdigit() and a.isascii() and (a[:1], len(a)) == (r[:1], len(r))"),
]  # fmt: skip


@pytest.mark.parametrize(("gate", "old", "new"), REFUSED)
def test_each_gate_refuses_what_it_is_there_for(examine, gate, old, new):
    assert old in SUM
    found = examine(SUM.replace(old, new))
    assert (found.gate, bool(found.detail)) == (gate, True), found


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


def test_every_gate_is_tried():
    tried = {gate for gate, *_ in (*REFUSED, *resyn_defects.CHANGES.values())}
    assert tried == set(gates.GATES)
