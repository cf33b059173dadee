"""What a node is, what the words after an answer say of it, and numerators and denominators."""

from loong_jax.verifiers.maths import names, values
from loong_jax.verifiers.maths.expression import COLLECTIONS, ONE, Node, number

PI = Node("constant", ("pi",))


def is_value(node: Node) -> bool:
    return not node.heads & _NO_VALUES


_NO_VALUES = frozenset(
    str.split(
        "chain interval union intersection setminus builder matrix set tuple bracket list and or "
        "pm text piecewise modular"
    )
)


def is_plain(node: Node) -> bool:
    return node.head in ("number", "neg", "div") and not node.symbols


def needs_symbolic(node: Node) -> bool:
    return bool(node.heads & {"integral", "limit", "sum", "product"})


def structure(node: Node) -> frozenset[str]:
    return frozenset(item for item in node.heads if item in COLLECTIONS or item == "chain")


def is_roughly(exact: Node, rounded: Node) -> bool:
    a, b = values.real_value(exact), values.real_value(rounded)
    if a is None or b is None:
        return True
    gap = abs(float(a) - float(b)) if abs(a) < 10**300 and abs(b) < 10**300 else 0.0
    return gap <= 0.01 * max(abs(float(a)), abs(float(b)), 1e-300) if gap else True


def without_accent(name: str) -> str:
    """r of vec(r)."""
    accent, _, inner = name.partition("(")
    return inner.rstrip(")") if accent in ("vec", "overrightarrow", "bar", "hat") else name


def is_applied(node: Node) -> bool:
    """Whether p(x), read as a product, is the name of a function and its variable."""
    if node.head != "mul" or len(node.args) != 2 or any(n.head != "symbol" for n in node.args):
        return False
    name, variable = (item.args[0] for item in node.args)
    name = without_accent(name)
    return name in tuple("pqrsuvPQRSTFGHAV") and variable in tuple("xtnyz")


def is_derivative(node: Node) -> bool:
    """dy/dx, d^2y/dx^2, or d/dx before what it is of, all of which are read as products of d."""
    if node.head == "mul" and node.args and is_derivative(node.args[0]):
        return True
    if node.head != "div":
        return False
    above, below = (n.args[0] if n.head == "mul" else n for n in node.args)
    powers = [n.args[1] if n.head == "pow" else ONE for n in (above, below)]
    above, below = (n.args[0] if n.head == "pow" else n for n in (above, below))
    last = node.args[1].args[-1] if node.args[1].head == "mul" else ONE
    order = last.args[1] if last.head == "pow" else ONE
    return above == below and above in _DIFFERENTIALS and powers[0] == order


_DIFFERENTIALS = (Node("symbol", ("d",)), Node("symbol", ("partial",)))


def is_unsolved(equation: Node) -> bool:
    """Whether an equation such as 3x + 4 = 19 leaves its unknown to be found."""
    operators, *sides = equation.args
    return operators == ("=",) and not any(s.head == "symbol" or s == number(0) for s in sides)


def is_multiple(node: Node) -> bool:
    """2x: a number before one unknown, whose value is asked for."""
    if node.head != "mul" or len(node.args) != 2:
        return False
    factor, unknown = node.args
    return factor.head == "number" and factor != number(1) and unknown.head == "symbol"


def order_of_derivative(node: Node) -> int:
    """2 of d^2y/dx^2 and of y''; 0 for anything else."""
    if node.head in ("symbol", "apply"):
        return len(node.args[0]) - len(node.args[0].rstrip("'"))
    if not is_derivative(node):
        return 0
    node = node.args[0] if node.head == "mul" else node
    last = node.args[1].args[-1] if node.args[1].head == "mul" else ONE
    return last.args[1].args[0] if last.head == "pow" and last.args[1].head == "number" else 1


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


def numerator(node: Node) -> Node:
    """The expression times its denominators; itself where no unknown stands in one."""
    above, below = fraction(node)
    return above if below.symbols else node


def fraction(node: Node) -> tuple[Node, Node]:
    head, args = node
    if head == "neg":
        above, below = fraction(args[0])
        return Node("neg", (above,)), below
    if head == "div":
        (a, b), (c, d) = fraction(args[0]), fraction(args[1])
        return product(a, d), product(b, c)
    if head == "mul":
        parts = [fraction(arg) for arg in args]
        return product(*(p[0] for p in parts)), product(*(p[1] for p in parts))
    if head == "add":
        above, below = fraction(args[0])
        for arg in args[1:]:
            a, b = fraction(arg)
            if b == below:
                above = Node("add", (above, a))
            else:
                above = Node("add", (product(above, b), product(a, below)))
                below = product(below, b)
        return above, below
    if head == "pow" and args[1].head == "number" and isinstance(args[1].args[0], int):
        above, below = fraction(args[0])
        if args[1].args[0] < 0:
            above, below = below, above
        exponent = number(abs(args[1].args[0]))
        return tuple(p if p == ONE else Node("pow", (p, exponent)) for p in (above, below))  # type: ignore[return-value]
    return node, ONE


def product(*factors: Node) -> Node:
    kept = [factor for factor in factors if factor != ONE]
    if not kept:
        return ONE
    return kept[0] if len(kept) == 1 else Node("mul", tuple(kept))
