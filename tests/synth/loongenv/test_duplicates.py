import random

from loong_jax.synth.loongenv.gates import Duplicates, grams, shape, words_of
from tests.synth.scripted import world

ASKED = "A train of 12 wagons, each with 40 seats, is two thirds full. How many seats are free?"


def known(*questions):
    found = Duplicates()
    for n, question in enumerate(questions):
        found.add(f"q{n}", question)
    return found


def test_equal_and_nearly_equal_questions_are_found():
    old = known("What is the capital of a country with no cities?", ASKED)
    assert old.find(ASKED.upper().replace(",", " ,")) == ("q1", 1.0)
    name, similarity = old.find(ASKED.replace("wagons", "coaches"))
    assert name == "q1"
    assert 0.6 < similarity < 1
    assert old.find("How many seats has a train with 12 wagons?") is None
    assert Duplicates().find(ASKED) is None


def test_other_numbers_make_another_problem():
    assert known(ASKED).find(ASKED.replace("12", "14")) is None
    assert known("What is 3 * 4?").find("What is 3 * 5?") is None
    long = " ".join(f"word{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(200))
    assert known(long + " 3").find(long + " 4") is not None, "but not within a long text"


def test_similarity_is_that_of_sets():
    rng = random.Random(0)
    questions = [world.draw("advanced_math", rng, 1).question for _ in range(60)]
    index = known(*questions[:40])
    for question in questions[40:]:
        own = grams(words_of(question))
        others = [grams(words_of(other)) for other in questions[:40]]
        wanted = max(len(own & other) / len(own | other) for other in others)
        assert index.nearest(question)[1] == wanted


def test_a_question_is_not_its_own_neighbour():
    index = known(ASKED, "Something else is asked here, with other words altogether.")
    assert index.nearest(ASKED)[0] == "q0"
    assert index.nearest(ASKED, besides="q0")[1] < 0.1


def test_shapes_mask_numbers():
    assert shape("Add 3 and -4.5!") == shape("add 17 and 2")
    assert shape("Add 3 and 4") != shape("Add 3 to 4")
