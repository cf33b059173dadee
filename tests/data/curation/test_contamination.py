"""Items of benchmarks are found whole, embedded and reworded; an exact loop agrees on the share."""

import collections
import json
import random

import pytest

from loong_jax.data.curation.contamination import Contamination, Index, Overlap
from loong_jax.errors import ConfigError

WORDS = [f"word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(500)]


def text(rng, length):
    return " ".join(rng.choices(WORDS, k=length))


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


@pytest.mark.parametrize("settings", [{"min_share": 0}, {"ngram": 20}, {"max_items": 0}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(ConfigError):
        Overlap(**settings)
