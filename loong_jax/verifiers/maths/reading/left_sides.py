r"""Left sides that name a value in notation the grammar does not read: [OH^-], \text{area}, Var(X).

Only the name is dropped. What calculates (twice the area, a number before a bracket) is no name.
"""

import re

_CONCENTRATION = (
    r"(?:\\left)?\[\s*(?:\\(?:mathrm|text|ce)\s*\{[^=]{1,30}\}|[A-Z][A-Za-z\d_^{}+-]{0,20})\s*(?:\\right)?\]"
    r"(?:_\{?\\?\w{1,12}(?:\{\w+\})?\}?)?"
)
_SUBSCRIPT = (
    r"(?:_\{[^{}=]{0,20}(?:\{[^{}=]*\}[^{}=]{0,10})*\}|_\\?\w+|\^\{?\\?(?:circ|ominus|\*|\w)\}?|')*"
)
_THERMODYNAMIC = rf"(?:\\Delta|\u0394)\s*(?:\\[A-Za-z]+\s*)?\{{?[A-Z]\}}?{_SUBSCRIPT}"
_NAME = (
    r"(?:[A-Za-z]|\\[A-Za-z]+|\\(?:mathbb|mathrm|mathcal|text|operatorname)\s*\{[A-Za-z]{1,12}\}|"
    r"[A-Z][a-z]{1,3})"
)
_APPLIED = (  # P(A \mid B), E[X], Var(X), f'(2), [K : Q]
    rf"{_NAME}{_SUBSCRIPT}\s*(?:\\[bB]igg?l?|\\left)?\s*(?:\([^=]{{1,60}}\)|\[[^=]{{1,60}}\])"
)
_WORDS = (
    r"(?:\\text(?:bf|it|rm)?\s*\{[^{}=\d]{2,60}\}[\s\\,:;]*[A-Z']{0,5}|"
    r"(?:[A-Za-z][A-Za-z'-]*\s+){0,6}[A-Za-z][A-Za-z'-]+)"
)
_LEFT = re.compile(
    rf"\s*\$?\s*(?:{_CONCENTRATION}|{_THERMODYNAMIC}|{_APPLIED}|{_WORDS}|"
    r"\\(?:dim|deg|sup|inf|max|min|ker|operatorname\{\w{2,8}\})(?:_\{[^{}=]{1,20}\}|_\w)?\s*"
    r"(?:\(?[A-Za-z\\{}' ]{0,16}\)?)|"
    r"\[[A-Z]{3,6}\]|\[[A-Z](?:\([^()=]{1,20}\))?\s*:\s*\\mathbb\{?Q\}?\]|"
    r"m?\\angle\s*[A-Z]{1,3}|\\overline\{[A-Z]{2}\}|\|\\?[A-Za-z]+\{?[A-Z]*\}?\|)\s*\Z"
)
_CHANGES = re.compile(
    r"\b(?:twice|half|double|triple|thrice|square|squared|cubed?|root|reciprocal|negative|minus|"
    r"plus|times|not|never|if|or|odds|wrong|incorrect|number of digits|remainder|last|inverse|"
    r"opposite)\b",
    re.IGNORECASE,
)
_EQUALS = re.compile(r"(?<![<>!=:\\])(?:=|\\approx\b|\u2248)(?![=>])")


def value_after(text: str) -> str | None:
    """What follows the one sign of equality after such a name; None for any other text."""
    if len(text) > 300:
        return None
    parts = _EQUALS.split(text)
    if not 2 <= len(parts) <= 3 or not parts[1].strip():
        return None
    if not _LEFT.match(parts[0]) or _CHANGES.search(parts[0]):
        return None
    return "=".join(parts[1:]).strip()


_ONE_CONCENTRATION = re.compile(
    r"(?:\\left)?\[\s*(?:\\(?:mathrm|text|ce)\s*\{)?([A-Z][A-Za-z\d_]{0,12}(?:\^\{?\d?[+-]\}?)?)\}?\s*"
    r"(?:\\right)?\]"
)
_SIGNS = {"+": "plus", "-": "minus"}


def with_concentrations(text: str) -> str:
    """[A] and [OH^-] as letters with a subscript, where at least two stand in a formula."""
    if text.count("[") < 2 or len(text) > 300 or ("/" not in text and "\\frac" not in text):
        return text
    if len(_ONE_CONCENTRATION.findall(text)) != text.count("["):
        return text
    return _ONE_CONCENTRATION.sub(lambda m: f" c_{{{_letters(m[1])}}} ", text)


def _letters(name: str) -> str:
    return "".join(_SIGNS.get(c, c) for c in name if c.isalnum() or c in _SIGNS)


_NAMES = r"(?:textcolor|colorbox|color|[hv]space|tag|label|[hv]?phantom)\*?"
_GROUP = r"\s*\{(?:[^{}]|\{[^{}]*\})*\}"
_OPTION = r"(?:\s*\[[^\[\]{}]*\])?"
_LAYOUT = re.compile(
    rf"\\(?:{_NAMES}{_OPTION}{_GROUP}|"
    rf"fcolorbox{_OPTION}{_GROUP}{_GROUP}|bbox{_OPTION}(?=\s*\{{))|(?<=\d)\{{\s*\}}"
)


def left_out(text: str) -> str:
    """The formula without such commands: `\\color{red}{8}` and `8 \\tag{1}` are 8."""
    return _LAYOUT.sub(" ", text)


_COUNTS = {"two": 2, "2": 2, "three": 3, "3": 3, "four": 4, "4": 4, "one": 1, "1": 1}
ASIDE = (
    r"\(?\s*(?:\\text\{\s*)?\(?(?:(?:with|of)\s+)?(?:an?\s+)?(?:algebraic\s+)?(?:"
    r"multiplicity\s+(?:of\s+)?\}?\s*\$?(?P<count>two|three|four|one|[1-4])\$?|"
    r"(?P<double>double(?:\s+(?:root|eigenvalue|zero))?|twice|repeated(?:\s+twice)?|"
    r"counted twice))\s*\)?\s*\}?\s*\)?"
)
_ITEM = re.compile(
    r"(?P<before>\A|.*?(?:[,;]|\band\b(?:\s*\})?|\\\}))(?P<item>(?:(?!,|;|\band\b).){1,60}?)"
    r"[\s$,]*" + ASIDE + r"(?=\s*(?:\Z|[,;.$]|\\text|\band\b))",
    re.DOTALL,
)
MAX_CHARS = 300


def spelled_out(text: str) -> str:
    """The text with what has a multiplicity written so many times: "2, 2 and 5"."""
    if len(text) > MAX_CHARS or not re.search("multiplicity|double|twice|repeated", text):
        return text
    for _ in range(4):
        match = _ITEM.match(text)
        if match is None:
            return text
        count = 2 if match["double"] else _COUNTS[match["count"]]
        item = match["item"].strip().rstrip("(").strip()
        value = item.rpartition("=")[2].strip()
        if not value or not re.search(r"\d|\\|[a-z]", value):
            return text
        repeated = ", ".join([item, *[value] * (count - 1)])
        text = f"{match['before']} {repeated}{text[match.end() :]}"
    return text
