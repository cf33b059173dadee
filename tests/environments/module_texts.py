"""Texts of small environment modules for tests."""

SUM = '''"""Sum of numbers."""
import random


def levels():
    return [1, 2, 3, 4, 5]


def generate(level, seed):
    rng = random.Random(seed * 8 + level)
    return {"numbers": [rng.randrange(100) for _ in range(level + 1)]}


def question(state):
    return "Add " + " ".join(map(str, state["numbers"])) + "."


def reference(state):
    return str(sum(state["numbers"]))


def reward(state, answer):
    return answer.strip() == reference(state)


def steps(state):
    numbers = state["numbers"]
    return [str(sum(numbers[: i + 1])) for i in range(len(numbers))]
'''
