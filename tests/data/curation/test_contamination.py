"""Items of benchmarks are found whole, embedded and reworded; an exact loop agrees on the share."""

import collections
import json
import random

import pytest

from loong_jax.data.curation import duplicates
from loong_jax.data.curation.contamination import Contamination, Index, Overlap
from loong_jax.errors import ConfigError
from tests.data.curation import corpora

WORDS = [f"word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(500)]


def text(rng, length):
    return " ".join(rng.choices(WORDS, k=length))


def test_the_share_that_is_found_falls_with_the_words_that_changed():
    rng = random.Random(0)
    items = [corpora.prompt(rng) for _ in range(60)]
    index = Index(items)

    def found(texts):
        return len(index.matches(texts)) / 60

    def changed(num):
        return [corpora.edited(item, num, rng) for item in items]

    assert found(items) == 1.0
    assert found(changed(2)) > 0.9
    assert found([f"{corpora.prompt(rng)} {text} {corpora.prompt(rng)}" for text in items]) == 1
    assert found(changed(12)) < 0.5
    assert found([corpora.prompt(rng) for _ in range(60)]) <= 0.1


def test_shares_are_those_of_a_plain_loop():
    rng = random.Random(0)
    items = [text(rng, rng.randint(2, 25)) for _ in range(40)]
    texts = []
    for i in range(200):
        words = items[i % 40].split()
        for _ in range(i // 40):
            words[rng.randrange(len(words))] = rng.choice(WORDS)
        texts.append(" ".join(rng.choices(WORDS, k=i % 7) + words))

    def runs(words):
        return {tuple(words[i : i + 3]) for i in range(len(words) - 2)} or {tuple(words)}

    items += [items[0] + " " + text(rng, 1) for _ in range(3)]
    count = collections.Counter(run for item in items for run in runs(item.split()))
    overlap = Overlap(ngram=3, min_share=0.4, long_run=13, max_items=1000)
    found = Index(items, overlap).matches(texts)

    def weight(some):
        return sum(1 / count[run] for run in some)

    for place, one in enumerate(texts):
        have = runs(one.split())
        shares = [weight(runs(i.split()) & have) / weight(runs(i.split())) for i in items]
        assert (max(shares) >= 0.4) == (place in found and found[place].kind != "long run")
        if place in found and found[place].kind == "overlap":
            assert found[place].share == pytest.approx(max(shares))


def test_kinds_of_matches():
    rng = random.Random(1)
    item, other = text(rng, 40), text(rng, 40)
    index = Index([other, item])
    words = item.split()
    found = index.matches([
        item.upper() + "!",
        "A preface. " + item + " A postscript that goes on for some more words.",
        text(rng, 30) + " " + " ".join(words[5:18]) + " " + text(rng, 30),  # 13 of 40 in a row
        text(rng, 30) + " " + " ".join(words[5:17]) + " " + text(rng, 30),
        text(rng, 40),
        "",
    ])  # fmt: skip
    assert {place: (match.item, match.kind) for place, match in found.items()} == {
        0: (1, "exact"),
        1: (1, "overlap"),
        2: (1, "long run"),
    }


def test_the_frame_of_a_template_tells_nothing():
    frame = "How many different ways are there to arrange the letters of the word {} in a row"
    items = [frame.format(word) for word in WORDS[:100]]
    new = frame.format("unheardof")
    assert Index(items[:1]).matches([new])[0].kind == "overlap"
    assert Index(items[:1], Overlap(min_share=1.0)).matches([new])[0].kind == "long run"
    for max_items in (50, 1000):
        found = Index(items, Overlap(max_items=max_items)).matches(
            [new, items[3], items[3] + " ?a"]
        )
        assert {place: (match.item, match.kind) for place, match in found.items()} == {
            1: (3, "exact"),
            2: (3, "overlap"),
        }


def test_stage_names_the_item(tmp_path):
    (tmp_path / "bench.jsonl").write_text(
        json.dumps({"id": "aime-3", "prompt": "Find the number of primes below forty two."}) + "\n"
    )
    stage = Contamination(against=(tmp_path / "bench.jsonl",))
    said = stage.judge([{"prompt": "find the number of PRIMES below forty two"}, {"prompt": "Hi"}])
    assert said.reasons == {0: "exact: 1.00 of bench.jsonl aime-3"}
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ConfigError, match="no prompts"):
        Contamination(against=(tmp_path / "empty.jsonl",)).judge([{"prompt": "x"}])


ITEM = "Let $a$ and $b$ be the two roots of $x^2-5x+6=0$. What is $a^{2}+b^2$ equal to?"


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("x\u00b2-5x+6=0. What is a\u00b2+b\u00b2 equal to?", True),
        ("x\u00b2\u22125x+6=0. What is a\u00b2+b\u00b2 equal to?", True),
        ("x<sup>2</sup>-5x+6=0. What is a<sup>2</sup>+b<sup>2</sup> "
         "equal to?", True),
        ("x<SUP class='p'>2</SUP>-5x+6=0. What is a^2+b^2 equal to?",
         True),
        ("x&sup2;-5x+6=0. What is a&sup2;+b&sup2; equal to?", True),
        ("x&#178;&minus;5x+6=0. What is a&#178;+b&#178; equal to?", True),
        ("x^2-5x+6=0. What is a^2+b^2 equal to?", True),
        ("X\u00b2 - 5X + 6 = 0. WHAT IS A\u00b2 + B\u00b2 EQUAL TO?", True),
        ("y\u00b3-7y+1=0. Is p\u00b3+q\u00b3 their sum?", False),
        ("12 m\u00b2, and the shade of a tree is 5 m\u00b2?", False),
    ],
)  # fmt: skip
def test_powers_are_found_however_they_are_written(text, is_found):
    found = Index([ITEM]).matches(["Let a and b be the two roots of " + text])
    assert bool(found) is is_found


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("x\u00b2", "x^2", True),
        ("x\u00b9\u2070", "x^{10}", True),
        ("x<sup>n+1</sup>", "x^{n+1}", True),
        ("2\u207b\u00b9", "2^{-1}", True),
        ("x\u2081+x\u2082", "x_1+x_2", True),
        ("x<sub>1</sub>", "x_1", True),
        ("x\u00b2y", "x^2 y", True),
        ("5\u22123", "5-3", True),
        ("a &lt; b", "a < b", True),
        ("x\u00b2", "x2", False),
        ("x\u00b2", "x^3", False),
        ("x<sup>2</sup>", "x_2", False),
        ("5\u22123", "5+3", False),
        ("AT&T", "at t", True),
        ("<summary>x</summary>", "<summary>x</summary >", True),
    ],
)
def test_words_of_powers_and_indices(one, other, is_same):
    prints = duplicates.fingerprints([one, other])
    assert bool(prints[0] == prints[1]) is is_same
