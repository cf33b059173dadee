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
