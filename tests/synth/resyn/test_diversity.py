"""What counts as another environment: not another name, number or word."""

from loong_jax.synth.resyn import diversity
from tests.synth.scripted import resyn_digits, resyn_letters, resyn_search

FAMILIES = (*resyn_digits.FAMILIES, *resyn_letters.FAMILIES, *resyn_search.FAMILIES)
BASE = '''
import math
def helper(numbers, factor=3):
    """Adds up."""
    return sum(numbers) * factor
def question(state): return "q"
def reward(state, answer):
    # checks
    return answer.strip() == str(helper(state["numbers"]))
'''


def test_names_numbers_texts_and_comments_do_not_make_another_verifier():
    other = (
        BASE.replace("helper", "total").replace("numbers", "xs").replace("=3", "=5")
        .replace('"""Adds up."""', '"""Something else."""').replace("# checks", "# x")
        .replace('return "q"', 'return "another question"')
    )  # fmt: skip
    assert diversity.verifier_form(other) == diversity.verifier_form(BASE)
    for old, new in [("sum(", "max("), ("*", "+"), ("==", "in"), ("strip", "lower")]:
        changed = BASE.replace(old, new)
        assert diversity.verifier_form(changed) != diversity.verifier_form(BASE), (old, new)


def test_a_template_is_what_the_questions_share():
    asked = ["Anna buys 3 red pears, 12 in all.", "Otto buys 40 green pears, 5 in all."]
    assert diversity.template(asked) == "w buys 0 w pears , 0 in all ."
    assert diversity.template(asked) != diversity.template(["Anna sells 3 pears."])


def test_the_scripted_families_are_all_different():
    """By name and by the code of their verifiers; a good half of them are short (test_gates)."""
    assert len(FAMILIES) >= 40
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    forms = {diversity.verifier_form(family.source()) for family in FAMILIES}
    assert len(forms) == len(FAMILIES)


def test_figures_of_a_set():
    one = diversity.form_of(BASE, ["add 1 2", "add 3 4"])
    two = diversity.form_of(BASE.replace("sum", "max"), ["most of 1 2", "most of 3 4"])
    found = diversity.measure({"a": one, "b": two, "c": one}, {"a": "k", "b": "k", "c": "l"})
    assert found["environments"] == 3
    assert found["distinct_both"] == found["distinct_verifiers"] == 2
    assert found["nearest_similarity"]["max"] == 1.0
    assert found["keywords"] == 2
    assert found["most_of_one_keyword"] == 2
