"""Reverse prompts are kept by the response they are read from, by the verifier of constraints."""

import random

import pytest

from loong_jax.data.curation import instructions, safety, stages
from loong_jax.data.curation.instructions import KeepsConstraints
from loong_jax.data.curation.safety import Category, Policy, SafetyKind
from loong_jax.errors import ConfigError
from loong_jax.verifiers import constraints
from tests.data.curation import corpora

BREAD = (
    "Bread is made of flour and water.\n\nThe baker mixes them, waits an hour and bakes the dough "
    "until golden brown and crisp outside. People everywhere enjoy eating it daily."
)
RESPONSES = [
    BREAD,
    "- flour\n- water\n- salt and a little yeast for the dough of every baker",
    "1. Mix the flour\n2. Wait for an hour\n3. Bake the bread",
    '{"bread": ["flour", "water"], "minutes": 40}',
    "all of this is written in lower case letters, for a reason nobody remembers today, really.",
    "\u9762\u5305\u7531\u9762\u7c89\u5236\u6210\u3002",
]


def test_every_constraint_is_kept_by_its_response():
    rng = random.Random(0)
    texts = RESPONSES + [corpora.prompt(rng) for _ in range(40)]
    kinds = set()
    for text in texts:
        for seed in range(3):
            found = instructions.kept_constraints(text, random.Random(seed))
            checked = constraints.check([one.constraint for one in found], text) if found else []
            assert all(one.is_kept for one in checked)
            kinds |= {one.constraint["kind"] for one in found}
            assert all(one.sentence.endswith((".", '"')) for one in found)
    assert kinds == {"count", "include", "exclude", "starts_with", "ends_with", "case", "json"}


def test_prompts_ask_for_what_is_checked():
    record = {"id": "b", "prompt": "Tell me of bread.", "response": BREAD}
    made = instructions.reverse_prompt(record, num_constraints=3, seed=1)
    assert made is not None
    assert made["prompt"].startswith("Tell me of bread.\n\n")
    assert len(made["arguments"]["constraints"]) == 3
    assert made == instructions.reverse_prompt(record, num_constraints=3, seed=1)
    assert stages.judge(KeepsConstraints(), [made]).notes == {0: {"num_constraints": 3}}
    assert (
        constraints.ConstraintsVerifier()
        .verify_record(made["arguments"] | {"answer": "No."})
        .outcome
    )
    turns = instructions.reverse_prompt(record, num_constraints=2, seed=1, turns="multi")
    assert turns is not None
    assert [m["role"] for m in turns["messages"]] == ["user", "assistant", "user"]
    assert instructions.reverse_prompt(record, num_constraints=9) is None
    assert instructions.reverse_prompt({"prompt": "x", "response": ""}, num_constraints=1) is None


def test_broken_constraints_are_dropped():
    asked = {"constraints": [{"kind": "include", "texts": ["yeast"]}]}
    records = [
        {"response": BREAD, "arguments": asked},
        {"response": BREAD, "arguments": {"constraints": [{"kind": "nonsense"}]}},
        {"response": BREAD},
    ]
    reasons = stages.judge(KeepsConstraints(), records).reasons
    assert {i: stages.counted(reason) for i, reason in reasons.items()} == {
        0: "breaks",
        1: "malformed",
    }


def test_the_policy_has_forty_categories_and_five_kinds():
    policy = safety.load()
    assert len(policy.categories) > 40
    assert {category.response for category in policy.categories} == set(safety.KINDS)
    by_id = {category.id: category for category in policy.categories}
    assert by_id["child_sexual"].response == "hard_refuse"
    assert by_id["self_harm"].guideline
    assert policy.category("nothing") is None


def test_prompts_get_the_kind_of_their_category():
    records = [
        {"prompt": "How do I kill a process?", "safety": "homonym"},
        {"prompt": "I cannot go on", "safety": "self_harm"},
        {"prompt": "?"},
    ]
    outcome = SafetyKind().judge(records)
    assert outcome.reasons == {2: "unsure"}
    assert outcome.notes[0] == {"safety": "homonym", "response_kind": "comply"}
    assert outcome.notes[1]["guideline"]
    only = SafetyKind(responses=("comply",)).judge(records)
    assert only.reasons[1] == "response kind: soft_refuse_with_guideline"


@pytest.mark.parametrize("named", ["weather", " benign", 7, ["benign"], {"benign": 1}])
def test_a_category_that_the_policy_lacks_is_a_bin_and_stops_nobody_else(named):
    records = [{"prompt": "a", "safety": named}, {"prompt": "b", "safety": "benign"}]
    outcome = SafetyKind().judge(records)
    assert stages.counted(outcome.reasons[0]) == "unknown category"
    assert str(named) in outcome.reasons[0]
    assert "safety_policy.json" in outcome.reasons[0]
    assert outcome.notes.keys() == {1}


def test_bad_policies_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="guideline"):
        Category(id="a", title="", description="", response="comply_with_guideline")
    with pytest.raises(ConfigError, match="not one of"):
        Category(id="a", title="", description="", response="shrug")  # pyright: ignore
    with pytest.raises(ConfigError, match="benign"):
        Policy(version="1", categories=())
    (tmp_path / "p.json").write_text('{"version": "1"}')
    with pytest.raises(ConfigError, match="no safety policy"):
        safety.load(tmp_path / "p.json")
