"""Words of mathematics that mean the same, and sentences that begin with the name asked for."""

import re

from loong_jax.verifiers.maths.wording import phrases

_GROUPS = (  # normal forms; the words of one line mean the same
    "injective | one-to-one | one to one | an injection",
    "surjective | onto | a surjection",
    "bijective | a bijection | one-to-one correspondence | one to one correspondence | "
    "injective and surjective | one-to-one and onto | one to one and onto",
    "perpendicular | orthogonal | 垂直 | at right angles",
    "counterclockwise | counter-clockwise | anticlockwise | anti-clockwise",
    "singular | not invertible | non-invertible | noninvertible",
    "invertible | nonsingular | non-singular | not singular",
    "right triangle | right-angled triangle | right angled triangle",
    "acute triangle | acute-angled triangle | acute angled triangle",
    "obtuse triangle | obtuse-angled triangle | obtuse angled triangle",
    "diverges | diverge | divergent | does not converge | is divergent | not convergent | 发散",
    "converges | converge | convergent | is convergent | does not diverge | not divergent | 收敛",
    "cuboid | rectangular prism | rectangular parallelepiped",
    "linearly dependent | not linearly independent",
    "linearly independent | not linearly dependent",
    "strictly increasing | increasing strictly",
    "strictly decreasing | decreasing strictly",
    "commutative | abelian",
    "even | 偶数 | 偶函数 | gerade", "odd | 奇数 | 奇函数 | ungerade", "prime | 质数 | 素数", "composite | 合数",
    "increasing | 递增 | 单调递增 | 增函数", "decreasing | 递减 | 单调递减 | 减函数", "parallel | 平行",
    "rational | 有理数", "irrational | 无理数", "positive | 正数", "negative | 负数",
)  # fmt: skip
_SYNONYMS = {
    phrases.normal(word): frozenset(map(phrases.normal, group.split("|")))
    for group in _GROUPS
    for word in group.split("|")
}
_NAMED = re.compile(  # of Emma: "has the largest share", "is the tallest of all", "won the race"
    r"(?:(?:is|was|has|had|gets|got|have|owns|scored|received|receives|needs|ran|sold|bought|ate)"
    r" the (?:most|least|fewest|[a-z]{2,9}est|winner|best|worst)|won|wins)"
    r"(?: (?!not\b|but\b|except|after\b|than\b|apart\b|no\b|if\b|unless\b|or\b|nor\b)[a-z]+){0,6}"
)
_NAME = re.compile(r"[A-Z][a-z]{1,14}")


def of(wanted: str) -> frozenset[str]:
    """Normal forms that say the same as one, itself among them."""
    return _SYNONYMS.get(wanted, frozenset((wanted,)))


def is_said_of(name: str, sentence: str) -> bool:
    """Whether a sentence says of a name, and of no other, that it stands out: "Emma won."."""
    subject, _, rest = sentence.strip(" .!*").partition(" ")
    return (
        _NAME.fullmatch(name) is not None
        and subject.strip("*") == name
        and _NAMED.fullmatch(rest) is not None
    )
