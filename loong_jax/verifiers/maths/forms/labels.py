"""Words that follow an answer, and whether they contradict it or take it back."""

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import Node


def label(node: Node) -> tuple[str, ...]:
    return () if node.head != "labelled" or domains(node) else node.args[1]


def domains(node: Node) -> tuple[str, ...]:
    """Where its parameters live, as labels: "in Z"."""
    if node.head != "labelled" or not node.args[1][0].startswith("in "):
        return ()
    return node.args[1]


def labels_conflict(gold: tuple[str, ...], answer: tuple[str, ...]) -> bool:
    if not gold or not answer:
        return False
    stems = [{word.lower().rstrip("s.") for word in label} for label in (gold, answer)]
    return not stems[0] & stems[1]


_DENIALS = frozenset(("not", "incorrect", "wrong", "false", "impossible", "excluded", "never",
                      "extraneous", "discarded", "rejected", "invalid", "too"))  # fmt: skip
_SOLUTIONS = frozenset(("solution", "solutions", "root", "roots"))


def denies(label: tuple[str, ...]) -> bool:
    """Whether the words after an answer take it back or change it: "(D) is incorrect"."""
    words = {word.lower() for word in label}
    if label and label[0].lower() == "who":  # 45 who do not
        return False
    if label and label[0].lower() in ("if", "unless"):  # 50 if the coin were fair
        return True
    counts_solutions = words & {"has", "have"} and words & _SOLUTIONS
    return bool(words & _DENIALS or words & names.CHANGING_WORDS or counts_solutions)
