"""Numbers that a sentence mentions without saying that they are the answer.

The last number of a response may be a label ("Page 12"), a citation ("[3]"), a premise ("given
that there are 12 students"), a bound ("at least 44"), a step ("There are 3 cases. In the first
case"), or a question's ("could it be 24? Let me check"). Only where nothing better is found is a
number in prose read as an answer at all, so it must close what is said.
"""

import re

from loong_jax.verifiers.maths.extract import prose

_LABEL = re.compile(
    r"\b(?:problems?|questions?|exercises?|steps?|cases?|sections?|chapters?|parts?|pages?|theorems?|"
    r"lemmas?|propositions?|corollar(?:y|ies)|definitions?|examples?|equations?|eqs?|figures?|figs?|"
    r"tables?|lines?|items?|notes?|references?|refs?|versions?|levels?|rules?|appendix|methods?|"
    r"attempts?|paragraphs?|footnotes?|tasks?|volumes?|vol)\b\.?\s*(?:[(\[#]\s*|no\.\s*)?"
    r"(?:\d+\s+of\s+)?\Z",
    re.IGNORECASE,
)
_CITED = re.compile(r"\b(?!(?:is|are|be|equals?|gets?|gives?|obtain)\b)[A-Za-z]{2,}\s+\[\Z")
_NUMBERED_LINE = re.compile(r"^\s*\(?\d{1,2}[.)]\s+[A-Za-z]", re.MULTILINE)
_PREMISE = re.compile(
    r"\W*(?:(?:now|first|here|and|so|but|next|recall|note|notice|remember|because|since)\s+(?:that\s+)?)?"
    r"(?:given\b|we\s+(?:know|are\s+(?:told|given|asked)|were\s+(?:told|given|asked))\b|"
    r"(?:so\s+)?let(?:'s|\s+us)\s+(?:try|say|take|test)\b|try\b|(?:how|what)\s+about\b|what\s+if\b|"
    r"the\s+next\s+step\b|it\s+(?:only\s+)?remains\s+to\b|"
    r"it\s+(?:is|was)\s+(?:given|known)\b|you\s+(?:said|told|gave|asked)\b|suppose\b|assum(?:e|ing)\b|"
    r"the\s+(?:problem|question|statement|exercise|text)\s+(?:says|states|asks|gives|tells)\b)"
    r"(?!.*(?:[,;:]|\b(?:so|then|thus|hence|therefore)\b))",
    re.IGNORECASE | re.DOTALL,
)
_BOUND = re.compile(
    r"\b(?:at (?:least|most)|(?:no|not) (?:more|less|fewer|greater|larger|smaller) than|up to|"
    r"(?:more|less|fewer|greater|larger|smaller|bigger|higher|lower) than|exceeds?|beyond|close to)"
    r"\s+\$?\Z",
    re.IGNORECASE,
)
_NEIGHBOUR = re.compile(
    r"\b(?:after|before|following|preceding|past|above|below)\s+\Z", re.IGNORECASE
)
_RELATIVE = re.compile(r"\$?\s*(?:more|less|fewer|greater|larger|smaller)\s+than\b", re.IGNORECASE)
_NUMBER = re.compile(r"[\s$*]*-?\d[\d.,/]*\$?")
_OF_ANSWER = re.compile(r"\b(?:answer|result|solution)\s+(?:is|was|=|:)\s*\Z", re.IGNORECASE)
_SENTENCE_START = re.compile(r"(?:[.!?]\s+|\n+)(?=[^.!?\n]*\Z)")
_SENTENCE_END = re.compile(r"[.!?](?=\s|\*|$)|\n\s*\n|\n(?=\W*[A-Z])")
_PLEASANT = re.compile(
    r"\W*(?:let me know|please|i hope|hope|would you|if you|feel free|do you|thanks?|thank you|"
    r"happy|good luck|is there|does (?:that|this)|anything else|done|q\.?e\.?d|"
    r"i(?:'m| am) (?:confident|sure|certain)|this is|that is|that's|"
    r"this (?:matches|agrees|checks))\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[A-Za-z]{2,}")


def is_bound(body: str, start: int) -> bool:
    """Whether what begins at `start` bounds something: "at least 44"."""
    return _BOUND.search(body[max(0, start - 40) : start]) is not None


def is_premise(body: str, start: int) -> bool:
    """Whether what begins at `start` is told as known: "we know that one side is 5"."""
    return _PREMISE.match(_before(body, start)) is not None


def is_pleasantry(body: str, start: int) -> bool:
    """Whether what begins at `start` is in a sentence that ends a conversation."""
    return _PLEASANT.match(_before(body, start)) is not None


def is_tried(sentence: str) -> bool:
    """Whether a sentence asks, or supposes what it says: "How about 12?"."""
    asks = sentence.endswith("?") and _NUMBER.search(sentence) is not None
    return asks or _PREMISE.match(sentence) is not None


def is_relative(text: str) -> bool:
    """Whether a text begins with a number that is a distance: "7 less than the total"."""
    number = _NUMBER.match(text)
    return number is not None and _RELATIVE.match(text[number.end() :]) is not None


def is_mentioned(body: str, start: int, end: int) -> bool:
    """Whether the number at `start` to `end` is in a sentence that does not end by stating it."""
    before, after = _before(body, start), body[end:]
    line = body[body.rfind("\n", 0, start) + 1 : start]
    if _LABEL.search(before) or (_CITED.search(before) and after.startswith("]")):
        return True
    if not line.strip(" (") and _numbers_lines(body, start - len(line)):
        return True
    is_neighbour = _NEIGHBOUR.search(before) and not _WORD.search(_rest(after))
    if is_neighbour and not prose.unit_after(body, end):
        return True
    if _RELATIVE.match(after) and _OF_ANSWER.search(before):
        return True
    return _goes_on(after)


def _numbers_lines(body: str, start: int) -> bool:
    """Whether the line at `start` and another one before it are numbered."""
    own = _NUMBERED_LINE.match(body, start)
    return own is not None and len(_NUMBERED_LINE.findall(body, 0, own.end())) > 1


def _before(body: str, start: int) -> str:
    """The sentence of a number, up to the number."""
    found = _SENTENCE_START.search(body, 0, start)
    return body[found.end() if found else 0 : start]


def _rest(after: str) -> str:
    """What the sentence says behind the number."""
    end = _SENTENCE_END.search(after)
    return after[: end.start()] if end else after


def _goes_on(after: str) -> bool:
    """Whether other sentences follow than those that end a conversation."""
    rest = after[len(_rest(after)) :].lstrip(".!?*`\n )$")
    if not _WORD.search(rest):
        return False
    sentences = [s for s in prose.sentences(rest) if _WORD.search(s)]
    return not all(_PLEASANT.match(sentence) for sentence in sentences)
