"""Rules on prompts and responses: named cases, planted defects, real problems that are sound."""

import json
import random
from pathlib import Path

import pytest

from loong_jax.data.curation import prompts, responses, stages
from loong_jax.errors import ConfigError
from tests.data.curation import corpora, rule_cases

FILTERS = {
    rule.name: rule
    for rule in (
        prompts.Incomplete(),
        prompts.MultiPart(),
        prompts.MultipleChoice(),
        prompts.TrueFalse(),
        prompts.External(),
        prompts.Conceptual(),
        responses.Repetition(),
        responses.Truncation(),
        responses.LanguageMixing(),
        responses.Form(form="plain"),
    )
}
LOONGBENCH = Path(__file__).resolve().parents[4] / "shared/data/loongbench"

PROMPTS = [
    (prompts.Incomplete(), "Solve.", "too short"),
    (prompts.Incomplete(), "Compute $35^{17}$.", None),
    (prompts.Incomplete(), "Find the least n such that n^2 is greater than the", "cut off"),
    (prompts.Incomplete(), "Find the next term of 1, 4, 9, ...", None),
    (prompts.Incomplete(), "What is the area of x in [0, 1) and y in (2, 3]?", None),
    (prompts.Incomplete(), "Simplify the fraction $\\frac{1}{2", "unclosed"),
    (prompts.Incomplete(), "Find (3x^7 - 5) + 4(x - 1) at x = 2, as a number", None),
    (prompts.Incomplete(), "In the figure above, find the angle at A.", "missing context"),
    (prompts.Incomplete(), "Use the result of part (b) to find n.", "missing context"),
    (prompts.Incomplete(), "What is caf\u00c3\u00a9 in English, as one word?", "garbled"),
    (prompts.Incomplete(), "Ada has 12 coins and gives 3 of them to Bo.", "asks nothing"),
    (prompts.Incomplete(), "Rationalize the denominator of the fraction 1/sqrt(2)", None),
    (prompts.Incomplete(), "\u4e00\u52a0\u4e00\u7b49\u4e8e\u591a\u5c11\uff1f", None),
    (prompts.MultiPart(), "(a) Find x. (b) Find y.", "labelled parts"),
    (prompts.MultiPart(), "Rules: (1) a is in S; (2) b is in S. Find |S|.", None),
    (prompts.MultiPart(), "What is x? What is y?", "several questions"),
    (prompts.MultiPart(), "Find all roots and compute their sum.", None),
    (prompts.MultiPart(), "Find x. Also find y.", "several tasks"),
    (prompts.MultiPart(), "If x = 3, then find y = x + 1.", None),
    (prompts.MultipleChoice(), "What is 2+2?\nA. 3\nB. 4\nC. 5", "options"),
    (prompts.MultipleChoice(), "Pick one.\n(1) red\n(2) green\n(3) blue", "options"),
    (prompts.MultipleChoice(), "Clues: 1. The Swede lives next to the red house. 2. The Dane has a "
     "dog that barks. 3. The cat is white. Who has the fish?", None),
    (prompts.MultipleChoice(), "Find $\\mathrm{C}$, $\\mathrm{H}$, $\\mathrm{D}$.", None),
    (prompts.MultipleChoice(), "Which of these is prime: 4 or 5?", "which of the following"),
    (prompts.TrueFalse(), "True or false: 7 is prime.", "asks for a verdict"),
    (prompts.TrueFalse(), "For how many n is it true that n < 5?", None),
    (prompts.TrueFalse(), "A quiz has 5 true/false questions. How many keys are there?", None),
    (prompts.External(), "See example.org for x. What is x?", "url"),
    (prompts.External(), "What is 3.14.  Compute e.g. 2?", None),
    (prompts.External(), "<div>What is 2?</div>", "html"),
    (prompts.External(), "How many n have 1<n and n>0?", None),
    (prompts.External(), "a | b\n--- | ---\n1 | 2\nWhat is a + b?", "table"),
    (prompts.External(max_tables=1), "a | b\n--- | ---\n1 | 2\nWhat is a + b?", None),
    (prompts.External(), "What is P(A|B) + P(B|A)?", None),
    (prompts.Conceptual(), "Prove that 2 is prime.", "proof"),
    (prompts.Conceptual(), "Explain the water cycle.", "essay"),
    (prompts.Conceptual(), "What is the difference between 7 and 4?", None),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "text", "expected"), PROMPTS)
def test_prompts(rule, text, expected):
    reason = rule.reason({"prompt": text})
    assert (reason and stages.counted(reason)) == expected


def test_golds_and_rubrics_count():
    assert prompts.TrueFalse().reason({"prompt": "Is it so?", "gold": "$\\text{True}$"})
    assert prompts.TrueFalse().reason({"prompt": "What is x?", "gold": "3"}) is None
    proof = {"prompt": "Show that a = b. Give the value of a + b.", "gold": "4"}
    assert prompts.Conceptual().reason(proof) is None
    essay = {"prompt": "Explain why the sky is blue."}
    assert prompts.Conceptual().reason(essay) == "essay"
    assert prompts.Conceptual().reason(essay | {"rubric": "Names scattering."}) is None


LONG = (
    "We add the first number to the second one and see that the total is odd, as was said some "
    "lines before"
)
CASES = "".join(f"Case {i} is treated as before.\n{LONG} {i * i}{i}, {i}.\n" for i in range(9))
RESPONSES = [
    (responses.Repetition(), LONG + ". " + "And so on and on it goes. " * 9, "loop"),
    (responses.Repetition(), CASES, "sentences"),
    (responses.Repetition(), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12", None),
    (responses.Repetition(), LONG, None),
    (responses.Truncation(), LONG, "mid-sentence"),
    (responses.Truncation(), LONG + ".", None),
    (responses.Truncation(), LONG + ".\n\nAnswer: 12 cm", None),
    (responses.Truncation(), "<think>" + LONG, "open tag"),
    (responses.Truncation(), "It is \\boxed{\\frac{1}{2}", "open box"),
    (responses.Truncation(), "```python\nprint(1)", "open fence"),
    (responses.Truncation(), "42", None),
    (responses.LanguageMixing(), "So \u6240\u4ee5 it is 3.", "foreign script"),
    (responses.LanguageMixing(), "With \u03b1 = $\\text{\u6240\u4ee5}$ it is 3.", None),
    (responses.LanguageMixing(), "Nous avons donc cette somme pour une raison", "foreign words"),
    (responses.Form(form="think"), "<think>a</think> b", None),
    (responses.Form(form="think"), "<think>a</think><think>a</think> b", "not think"),
    (responses.Form(form="boxed"), "It is \\boxed{ }.", "not boxed"),
    (responses.Form(form="plain"), "a</think>b", "not plain"),
    (responses.Form(), "3", "not longcat"),
    (responses.Form(), "<longcat_think>a</longcat_think><longcat_answer>3</longcat_answer>", None),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "text", "expected"), RESPONSES)
def test_responses(rule, text, expected):
    reason = rule.reason({"prompt": "What is x?", "response": text})
    assert (reason and stages.counted(reason)) == expected


def test_what_the_engine_and_the_prompt_say_counts():
    assert responses.Truncation().reason({"response": "3.", "finish_reason": "length"}) == "length"
    asked = {"prompt": "\u732b is what?", "response": "\u732b means cat."}
    assert responses.LanguageMixing().reason(asked) is None
    french = {"prompt": "Quelle est donc la somme ?", "response": "Nous avons donc une somme pour"}
    assert responses.LanguageMixing().reason(french) is None
    for rule in (responses.Repetition(), responses.Truncation(), responses.Form()):
        assert rule.reason({"prompt": "no response"}) is None


@pytest.mark.parametrize("name", corpora.PLANTED)
def test_planted_defects_are_found_and_decoys_are_not(name):
    planted, stage, rng = corpora.PLANTED[name], FILTERS[name], random.Random(name)
    found, alarms = (
        stages.judge(stage, [planted.draw(rng, is_sound=sound) for _ in range(100)]).reasons
        for sound in (False, True)
    )
    least = {"incomplete": 65, "multi_part": 70, "language_mixing": 80}.get(name, 90)
    assert len(found) >= least
    assert len(alarms) <= 5


@pytest.mark.skipif(not LOONGBENCH.exists(), reason="no LoongBench files beside the repository")
def test_real_problems_pass():
    """1,611 problems of competitions: sound, save some with options."""
    lines = (LOONGBENCH / "advanced_math.jsonl").read_text().splitlines()
    records = [{"prompt": r["question"], "gold": r["final_answer"]} for r in map(json.loads, lines)]
    for rule, most in (
        (prompts.Incomplete(), 0.005),
        (prompts.MultiPart(), 0.005),
        (prompts.MultipleChoice(), 0.02),
        (prompts.TrueFalse(), 0.005),
        (prompts.External(), 0.005),
        (prompts.Conceptual(), 0.005),
    ):
        assert len(stages.judge(rule, records).reasons) <= most * len(records), rule.name


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError):
        responses.Repetition(max_share=0)
    with pytest.raises(ConfigError):
        responses.Form(form="xml")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", [*rule_cases.CASES])
def test_written_cases(name):
    stage, cases = FILTERS[name], rule_cases.CASES[name]

    def found(texts):
        asked = [{"prompt": "What is x?", cases.key: text} for text in texts]
        return len(stages.judge(stage, asked).reasons)

    assert found(cases.defects) >= 0.8 * len(cases.defects)
    assert found(cases.sound) <= 1
