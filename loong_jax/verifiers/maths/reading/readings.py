"""The loosest rules of the grammar, and all expressions that a text may stand for.

1,234 is a number and a list of two.
"""

import functools
import re
from fractions import Fraction

from loong_jax.verifiers.maths import expression as tree
from loong_jax.verifiers.maths import names, reading, wording
from loong_jax.verifiers.maths.expression import CostError, Node, ParseError
from loong_jax.verifiers.maths.reading import Parser, numerals, sums, words

LETTERS = re.compile(r"[^\W\d_]")
_SAID = names.patterns("readings")
_FORMULAS = re.compile(r"\$[^$]+\$(?:\s+\$[^$]+\$)+\.?")  # one under the other, or beside it
_OPERATES = re.compile(r"\s*(?:[-=+*/^<>,.)]|\\(?:text|mathrm|cdot|times|le|ge|ne|in|approx|pm)\b)")
_ONE_OF_LIST = re.compile(r"(?:\$?[A-Za-z](?:_\{?\w+\}?)?\s*=|[-+\d\\$(])[^=]*\Z")
_DOLLARS = re.compile(r"\$ ?(?=\d[\d,]*(?:\.\d+)?\.?\Z)")  # one sign alone is no LaTeX
MAX_LABEL_WORDS = 8
_SEPARATORS = {",": "list", ";": "list", "\\\\": "list", "&": "and", "\\land": "and",
               "\\wedge": "and", "\\lor": "or", "\\vee": "or", "|": "or",
               "\\implies": "list"}  # fmt: skip
_SET_SIGNS = ("(", "[", "{", "\\{")
_UNIONS = {"\\cup": "union", "\\cap": "intersection", "\\setminus": "setminus",
           "\\backslash": "setminus", "\\smallsetminus": "setminus",
           "\\bigcup": "union"}  # fmt: skip


def whole(parser: Parser) -> Node:
    """Parses the whole text, with the words around it: "the answer is 12 ways"."""
    while words.is_leading(parser.token, parser.peek()):
        parser.take()
        parser.accept(":")
    parser.accept("=", "\\approx")  # of a chain whose left side stands elsewhere
    if parser.token.kind == "end":
        raise ParseError("no expression")
    node = parser.items()
    label = []
    while parser.token.kind in ("word", "text") and len(label) < MAX_LABEL_WORDS:
        word = parser.take().text
        if not word.isalpha():
            raise ParseError(f"{word!r} is left over")
        label.append(word)
    if label and node == Node("symbol", ("I",)) and label[0] in names.VERBS_OF_WRITERS:
        raise ParseError("'I' is the writer")
    while parser.accept(".", ",", ";", "!", "?"):
        pass
    if parser.token.kind != "end":
        raise ParseError(f"{parser.token.text!r} is left over")
    return Node("labelled", (node, tuple(label))) if label else node


def items(parser: Parser) -> Node:
    """Relations with separators between them."""
    found, joins = [parser.nested(parser.relation)], set()
    while True:
        mark = parser.position
        join = _separator(parser)
        if join is None or parser.token.kind == "end":
            parser.position = mark
            break
        joins.add(join)
        if parser.token.kind == "word" and words.is_leading(parser.token, parser.peek()):
            parser.take()
        found.append(parser.nested(parser.relation))
    if len(found) == 1:
        return found[0]
    head = "or" if "or" in joins else "and" if "and" in joins else "list"
    return Node(head, tuple(found))


def _separator(parser: Parser) -> str | None:
    join = None
    while True:
        token, found = parser.token, None
        kind, text = token.kind, token.text
        if kind in ("sign", "command") and not (text == "|" and parser.bars):
            found = _SEPARATORS.get(text)
            join = join if found is None or join in ("and", "or") else found
        elif kind == "text" or (kind == "word" and text != "y"):
            found = names.JOIN_WORDS.get(text.lower())
            join = join if found is None else found or join or "list"
        if found is None:
            return join
        parser.take()


def relation(parser: Parser) -> Node:
    bound = names.RELATIONS.get(parser.token.text) if parser.token.kind != "text" else None
    if bound in ("<", "<=", ">", ">="):  # "at least 5" bounds what it does not name
        parser.take()
        return Node("chain", ((bound,), tree.UNNAMED, parser.union()))
    first = parser.union()
    mark = parser.position
    remainder = _modulus(parser) if parser.at("\\bmod") or parser.token.text == "mod" else None
    if remainder is not None and parser.at("="):  # 7 mod 5 = 2
        first = tree.call("mod", first, remainder)
    else:
        parser.position = mark
    operators, operands = [], [first]
    while True:
        token = parser.token
        operator = names.RELATIONS.get(token.text) if token.kind != "text" else None
        if operator is None and token.text in ("is", "in") and token.is_word:
            following = parser.peek()
            if token.text == "is" and words.starts_operand(parser, following):
                operator = "="
            elif token.text == "in" and following.text in (*_SET_SIGNS, "Interval"):
                operator = "in"
        if operator is None:
            break
        parser.take()
        if operator == "=>" or (operator == "<=>" and operators):  # what follows is concluded
            return parser.nested(parser.relation)
        operators.append(operator)
        operands.append(parser.union())
    node = Node("chain", (tuple(operators), *operands)) if operators else first
    modulus = _modulus(parser)
    return node if modulus is None else Node("modular", (node, modulus))


def _modulus(parser: Parser) -> Node | None:
    """11 of "(mod 11)" after a congruence."""
    mark = parser.position
    if parser.accept("\\pmod", "\\bmod", "\\mod", "\\pod"):
        return parser.argument()
    bracket = parser.accept("(")
    if parser.accept_word("mod"):
        modulus = parser.union()
        if not bracket or parser.accept(")"):
            return modulus
    parser.position = mark
    return None


def union(parser: Parser) -> Node:
    node = parser.sum()
    while True:
        token = parser.token
        if token.kind == "command" and token.text in _UNIONS:
            head = _UNIONS[token.text]
        elif token.text in ("U", "u") and parser.peek().text in _SET_SIGNS:
            head = "union"
        elif token.text == "\\" or (token.text == "\\\\" and parser.peek().text == "\\{"):
            head = "setminus"
        else:
            break
        parser.take()
        sets = (  # the 3 of "(-2, 3) U {3}" has braces that were read as a group
            Node("set", (side,)) if side.head in ("number", "neg", "div", "call") else side
            for side in (node, parser.sum())
        )
        node = Node(head, tuple(sets))
    colons = (":", "\\colon", "\\ratio")
    is_ratio = parser.colon_is_ratio and parser.at(*colons) and node.head not in tree.BARE_LISTS
    if is_ratio and words.starts_operand(parser, parser.peek()):
        parts = [node]
        while parser.accept(*colons):
            parts.append(parser.sum())
        node = Node("ratio", tuple(parts))
    return node


class Grammar(Parser):
    whole, items, relation = whole, items, relation
    union, sum, product = union, sums.sum_, sums.product
    factor, primary, argument = sums.factor, sums.primary, sums.argument
    starters = sums.STARTERS


MAX_TREE_DEPTH = 200  # 1/2/3/... and 3!!!... grow deep without a bracket


def parse(text: str) -> Node:
    """The expression a text stands for; raises ParseError or CostError."""
    tokens = reading.tokenize(reading.prepare(text))
    may_be_deep = len(tokens) > MAX_TREE_DEPTH // 4
    node = Grammar(tokens).whole()
    if may_be_deep and (deep := tree.depth(node)) > MAX_TREE_DEPTH:
        raise CostError(f"a tree {deep} deep, above {MAX_TREE_DEPTH}")
    return node


def of(text: str) -> tuple[Node, ...]:
    """All expressions a text may stand for, the likeliest first. Raises where there is none."""
    if len(text) <= 400:
        return cached(text)
    return _read(text)


def _read(text: str) -> tuple[Node, ...]:
    text = reading.with_concentrations(text.strip())
    text = _DOLLARS.sub(r"\\$", text, count=1) if "$" in text else text
    if text.count("$") > 3 and _FORMULAS.fullmatch(text):
        parts = [part.strip() for part in text.split("$")[1::2]]
        is_list = "\n" in text or all("=" in part for part in parts)
        if is_list and not any(_OPERATES.match(part) for part in parts[1:]):
            text = " \\text{ and } ".join(parts)
    elif "\n" in text:
        lines = [line.strip(" ,;.") for line in text.split("\n") if line.strip()]
        if all(_is_formula(line) and _ONE_OF_LIST.match(line) for line in lines):
            text = ", ".join(lines)
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].strip()
    if len(text) < 80 and _SAID.HOLDS_EMPTY.fullmatch(text.strip(" $")):
        return (Node("set", (tree.EMPTY,)),)
    if len(text) < 80 and LETTERS.search(text):
        bare = wording.normal(text)
        if text in ("\\emptyset", "\\varnothing") or wording.is_nothing(bare):
            return (tree.EMPTY,)
        if wording.is_everything(bare):
            return (tree.REALS,)
        if (value := numerals.number_from_words(bare)) is not None:
            return (tree.number(value),)
        if (twice := _SAID.TWICE.fullmatch(text.strip(" $"))) is not None:
            digits = twice[1].replace(",", "")
            if str(numerals.number_from_words(twice[2])) == digits:
                return (tree.number(int(digits)),)
        if (named := numerals.read(bare)) is not None:
            return (named,)
        if text[:1].isalpha() and (digits := numerals.with_digits(text)) is not None:
            text = digits
    if len(text) < 300 and (clause := reading.at_end(text)) is not None:
        text = clause[0].rstrip("$ ") + clause[1] if clause[0].count("$") < 2 else "".join(clause)
    bare = text.strip(" $")
    if match := re.fullmatch(r"(\d{1,9}) (to|in) (\d{1,9})", bare):
        pair = tree.number(int(match[1])), tree.number(int(match[3]))
        return (Node("ratio" if match[2] == "to" else "div", pair),)
    based = numerals.based_text(bare)
    with_comma = bare.replace("{,}", ",")
    if match := re.fullmatch(r"([-+]?0),(\d+)", with_comma):
        return (_decimal(match[1], match[2]),)
    grouped = None
    if (match := _SAID.POINT_GROUPS.fullmatch(bare.rstrip("€ "))) is not None:
        digits = re.sub("[. ]", "", match[1])
        grouped = _decimal(digits, match[3]) if match[3] else tree.number(int(digits))
    if match := _SAID.EXCEPT.fullmatch(text):
        left_out = parse(match[1])
        items = left_out.args if left_out.head in tree.BARE_LISTS else (left_out,)
        return (Node("setminus", (tree.REALS, Node("set", items))),)
    try:
        found = [_without_domains(parse(text))]
    except ParseError:
        if (only := based or grouped) is not None:
            return (only,)
        if (value := reading.value_after(text)) is None:
            raise
        return _read(value)
    if based is not None:
        found.insert(0, based)
    if grouped is not None:
        found.append(grouped)
    if match := re.fullmatch(r"([-+]?\d+),(\d{1,2}|\d{4,}|(?<=^0,)\d+)", with_comma):
        found.append(_decimal(match[1], match[2]))
    elif re.fullmatch(r"[-+]?\d{1,3}(?:,\d{3})+", bare):
        items = tuple(tree.number(int(part)) for part in bare.split(","))
        found.append(Node("list", items))
    return tuple(found)


def _is_formula(line: str) -> bool:
    """True if a line is a formula that neither goes on nor was begun before it."""
    goes_on = _OPERATES.match(line) or _SAID.GOES_ON.search(line)
    is_whole = all(line.count(one) == line.count(other) for one, other in ("()", "[]", "{}"))
    return is_whole and not goes_on and "\\begin" not in line and "\\end" not in line


def _without_domains(node: Node) -> Node:
    """A list without what only says where its parameters live, n in Z, which becomes a label."""
    kept, labels = [], set()
    for item in node.args if node.head in tree.BARE_LISTS else ():
        match item.unlabelled:
            case Node("chain", (("in",), _, Node("symbol", (name,)))) if name.startswith("set "):
                labels.add(name.replace("set ", "in "))
            case Node("chain", (("in",), _, tree.REALS)):
                labels.add("in R")
            case _:
                kept.append(item)
    if not kept or not labels:
        return node
    bare = kept[0] if len(kept) == 1 else Node(node.head, tuple(kept))
    return Node("labelled", (bare, tuple(sorted(labels))))


cached = functools.lru_cache(maxsize=65536)(_read)


def _decimal(whole: str, decimals: str) -> Node:
    text = f"{whole}.{decimals}"
    return tree.number(Fraction(text), len((whole + decimals).lstrip("-+0")) or 1)
