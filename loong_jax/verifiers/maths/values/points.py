"""Points at which functions are compared: values of their symbols, by trial."""

from collections.abc import Sequence
from fractions import Fraction

from loong_jax.verifiers.maths.values.powers import Value

# Values of the symbols, by trial: positive, then with signs. Of up to four symbols no two have the
# same sign in both of the last: |xy| is not xy.
POINTS = (
    ("1273/1009", "719/1013", "2111/997", "389/641", "1789/773", "503/881", "1301/499", "271/563"),
    ("311/1031", "1613/607", "863/1019", "2243/811", "421/947", "1129/557", "173/769", "1931/983"),
    (
        "-1249/983",
        "887/1021",
        "-433/1033",
        "1657/701",
        "-613/859",
        "1483/673",
        "347/991",
        "-991/467",
    ),
    (
        "641/1049",
        "-1907/853",
        "-1063/617",
        "-277/1039",
        "1321/709",
        "787/1051",
        "-1543/911",
        "-659/521",
    ),
)
FIRST_SIGNED, MIXED = 2, 3  # in the latter alone the first two symbols differ in sign


def bindings(names: Sequence[str], trial: int) -> dict[str, Value]:
    return {
        name: Fraction(POINTS[trial][(7 * i + i // 8) % 8]) + i // 8 for i, name in enumerate(names)
    }
