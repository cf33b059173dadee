"""MinHash against exact Jaccard indices, and near-duplicates against all pairs."""

import itertools
import random
import subprocess
import sys

import numpy as np

from loong_jax.data.curation import duplicates
from loong_jax.data.curation.duplicates import Similarity

WORDS = [f"w{chr(97 + i % 26)}{i}x" for i in range(400)]


def texts_with_edits(rng, num=60, length=30):
    """Texts, and for each one with some words replaced."""
    found = []
    for i in range(num):
        text = rng.choices(WORDS, k=length)
        found.append(" ".join(text))
        for place in rng.sample(range(length), i % 8):
            text[place] = rng.choice(WORDS)
        found.append(" ".join(text))
    return found


def grams(text, size):
    words = text.split()
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


def jaccard(one, other, size=3):
    one, other = grams(one, size), grams(other, size)
    return len(one & other) / len(one | other)


def test_words_are_those_of_a_plain_loop():
    texts = ["Hello, WORLD!", "", "x+1 = 2x", "naïve café 12", "\u4f60\u597d ab", "...", "a\tb\nc"]
    expected = [["hello", "world"], [], ["x", "+", "1", "=", "2x"], ["naïve", "café", "12"],
                ["\u4f60", "\u597d", "ab"], [], ["a", "b", "c"]]  # fmt: skip
    found = duplicates.words(texts)
    assert found.counts.tolist() == [len(words) for words in expected]
    every = list(itertools.chain(*expected))
    alone = {word: int(duplicates.words([word]).values[0]) for word in every}
    assert len(set(alone.values())) == len(alone)
    assert found.values.tolist() == [alone[word] for word in every]


def test_runs_are_equal_where_words_are():
    found = duplicates.shingles_of(["a b c d", "b c d e", "a b", "a b c", ""], 3)
    assert found.counts.tolist() == [2, 2, 1, 1, 0]
    abc, bcd, bcd2, cde, ab, abc2 = found.values.tolist()
    assert (abc, bcd) == (abc2, bcd2)
    assert len({abc, bcd, cde, ab}) == 4


def test_fingerprints_heed_order_and_nothing_else():
    a, b, c, d = duplicates.fingerprints(["What is 7 * 8?", "what is  7*8", "is what 7*8", ""])
    assert a == b
    assert len({int(a), int(c), int(d)}) == 3


def test_minima_estimate_the_jaccard_index():
    texts = texts_with_edits(random.Random(0))
    signatures = duplicates.signatures_of(duplicates.shingles_of(texts, 3), 512)
    pairs = [(i, i + 1) for i in range(0, len(texts), 2)]
    exact = np.array([jaccard(texts[i], texts[j]) for i, j in pairs])
    estimate = np.array([(signatures[i] == signatures[j]).mean() for i, j in pairs])
    error = np.sqrt(exact * (1 - exact) / 512)
    assert np.all(np.abs(estimate - exact) <= 4.5 * error + 1e-12)
    assert np.ptp(exact) > 0.8


def test_finds_what_all_pairs_find():
    texts = texts_with_edits(random.Random(1), num=120)
    similarity = Similarity(threshold=0.6, numbers_matter=False)
    found = duplicates.near_duplicates(texts, similarity)
    for first in range(0, len(texts), 2):
        exact = jaccard(texts[first], texts[first + 1])
        if abs(exact - 0.6) > 0.12:  # three standard errors of 128 minima
            assert (found[first + 1] == first) == (exact > 0.6), exact
    assert np.array_equal(found[found], found)
    assert np.all(found <= np.arange(len(found)))


def test_a_chain_of_alike_texts_is_one():
    words = WORDS[:60]
    texts = [" ".join(words[i : i + 40]) for i in (10, 6, 2, 0)]  # neighbours share most
    similarity = Similarity(threshold=0.7, numbers_matter=False)
    assert duplicates.near_duplicates(texts, similarity).tolist() == [0, 0, 0, 0]
    assert jaccard(texts[0], texts[3]) < 0.65


def test_other_numbers_are_another_problem():
    long = "A farmer has 12 cows and sells them one by one at the market for 30 coins each until"
    texts = [long, long.replace("12", "13"), long.upper()]
    assert duplicates.near_duplicates(texts).tolist() == [0, 1, 0]
    alike = Similarity(numbers_matter=False, threshold=0.5)
    assert duplicates.near_duplicates(texts, alike).tolist() == [0, 0, 0]


def test_many_copies_cost_no_square():
    texts = ["the same words again and again in every text of these"] * 3000
    assert not duplicates.near_duplicates(texts).any()
    assert duplicates.near_duplicates([]).shape == (0,)
    assert duplicates.near_duplicates(["", "?", "a"]).tolist() == [0, 0, 2]


def test_hashes_are_the_same_in_every_process():
    code = (
        "from loong_jax.data.curation import duplicates;"
        "print(int(duplicates.fingerprints(['What is 7 * 8?'])[0]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(out.stdout) == int(duplicates.fingerprints(["What is 7 * 8?"])[0])
