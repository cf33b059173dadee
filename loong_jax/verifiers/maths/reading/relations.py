"""The loosest rules of the grammar: items, relations between them, unions and ratios."""

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import BARE_LISTS, UNNAMED, Node, ParseError
from loong_jax.verifiers.maths.reading import Parser, words

MAX_LABEL_WORDS = 8
_SEPARATORS = {",": "list", ";": "list", "\\\\": "list", "&": "and", "\\land": "and",
               "\\wedge": "and", "\\lor": "or", "\\vee": "or", "|": "or",
               "\\implies": "list"}  # fmt: skip
_UNIONS = {"\\cup": "union", "\\cap": "intersection", "\\setminus": "setminus",
           "\\backslash": "setminus", "\\smallsetminus": "setminus",
           "\\bigcup": "union"}  # fmt: skip


def whole(parser: Parser) -> Node:
    """All of the text, with the words around it: "the answer is 12 ways"."""
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
    first = parser.nested(parser.relation)
    found, joins = [first], set()
    while True:
        mark = parser.mark()
        join = _separator(parser)
        if join is None:
            break
        if parser.token.kind == "end":
            parser.reset(mark)
            break
        joins.add(join)
        if parser.token.kind == "word" and words.is_leading(parser.token, parser.peek()):
            parser.take()
        found.append(parser.nested(parser.relation))
    if len(found) == 1:
        return first
    head = "or" if "or" in joins else "and" if "and" in joins else "list"
    return Node(head, tuple(found))


def _separator(parser: Parser) -> str | None:
    join = None
    while True:
        token = parser.token
        if token.kind in ("word", "text"):
            word = names.JOIN_WORDS.get(token.text.lower())
            if word is None or (token.text == "y" and token.kind == "word"):
                return join
            join = word or join or "list"
        elif token.kind in ("sign", "command") and token.text in _SEPARATORS:
            if token.text == "|" and parser.bars:
                return join
            join = join if join in ("and", "or") else _SEPARATORS[token.text]
        else:
            return join
        parser.take()


def relation(parser: Parser) -> Node:
    bound = names.RELATIONS.get(parser.token.text) if parser.token.kind != "text" else None
    if bound in ("<", "<=", ">", ">="):  # "at least 5" bounds what it does not name
        parser.take()
        return Node("chain", ((bound,), UNNAMED, parser.union()))
    first = parser.union()
    mark = parser.mark()
    remainder = _modulus(parser) if parser.at("\\bmod") or parser.token.text == "mod" else None
    if remainder is not None and parser.at("="):  # 7 mod 5 = 2
        first = Node("call", ("mod", first, remainder))
    else:
        parser.reset(mark)
    operators, operands = [], [first]
    while True:
        token = parser.token
        operator = names.RELATIONS.get(token.text) if token.kind != "text" else None
        if operator is None and token.kind in ("word", "text"):
            operator = {"in": "in", "is": "="}.get(token.text)
            if operator == "=" and not words.starts_operand(parser, parser.peek()):
                operator = None
            if operator == "in" and parser.peek().text not in ("(", "[", "{", "\\{", "Interval"):
                operator = None
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
    mark = parser.mark()
    if parser.accept("\\pmod", "\\bmod", "\\mod", "\\pod"):
        return parser.argument()
    bracket = parser.accept("(")
    if parser.token.text == "mod" and parser.token.kind in ("word", "text"):
        parser.take()
        modulus = parser.union()
        if not bracket or parser.accept(")"):
            return modulus
    parser.reset(mark)
    return None


def union(parser: Parser) -> Node:
    node = parser.sum()
    while True:
        token = parser.token
        if token.kind == "command" and token.text in _UNIONS:
            head = _UNIONS[token.text]
        elif token.text in ("U", "u") and parser.peek().text in ("(", "[", "{", "\\{"):
            head = "union"
        elif token.text == "\\" or (token.text == "\\\\" and parser.peek().text in ("\\{",)):
            head = "setminus"
        else:
            break
        parser.take()
        node = Node(head, (_as_set(node), _as_set(parser.sum())))
    if (
        parser.colon_is_ratio
        and parser.at(":", "\\colon", "\\ratio")
        and (words.starts_operand(parser, parser.peek()) and node.head not in BARE_LISTS)
    ):
        parts = [node]
        while parser.accept(":", "\\colon", "\\ratio"):
            parts.append(parser.sum())
        node = Node("ratio", tuple(parts))
    return node


def _as_set(node: Node) -> Node:
    """The 3 of "(-2, 3) U {3}", whose braces were read as a group."""
    return Node("set", (node,)) if node.head in ("number", "neg", "div", "call") else node
