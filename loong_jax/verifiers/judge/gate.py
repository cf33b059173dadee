"""The content gate: answers that no judge should see, because judges are known to accept them.

Judges reward answers without content, up to 90 % of the time (":", "Solution", "Thought process:";
arXiv 2507.08794, "master keys"), and texts that talk to them. Such answers are wrong, unless the
gold says the same.
"""

import re
import unicodedata

from loong_jax.verifiers import extract as tags
from loong_jax.verifiers import verdict
from loong_jax.verifiers.maths import extract
from loong_jax.verifiers.verdict import Verdict

MAX_ALTERNATIVES = 6  # beyond as many as the gold has

_CONTENT = re.compile(r"[^\W_]|[\u2100-\u214f\u2200-\u22ff±]|\\(?:infty|emptyset|varnothing)")
_OPENERS = re.compile(  # what opens an answer and is none, alone or in a row
    r"(?>(?:thought process|thinking|reasoning|analysis|explanation|solution|answer|final answer"
    r"|the (?:final |correct )?answer(?: is)?|result|conclusion|proof|step \d+|steps?|here is"
    r"|here's"
    r"|let'?s (?:solve|think|see|start|break)[\w ]{0,60}|let us [\w ]{0,60}"
    r"|to solve this[\w ]{0,40}"
    r"|we (?:need to|will|can) (?:solve|find)[\w ]{0,40}|first|ok(?:ay)?|sure|certainly"
    r"|correct|right"
    r"|yes it is|as follows|below|above|see above|same as (?:above|the reference)[\w ]{0,20}"
    r"|the (?:reference|gold) answer|matches the reference[\w ]{0,20}"
    r"|解|解答|答案|答え|解説|かいせつ|풀이|정답|respuesta|solución|solucion|réponse|lösung|antwort|resposta"
    r"|решение|ответ|حل|الجواب)[\s.,:;!?*#_`-]*+)++",  # possessive: no backtracking
    re.IGNORECASE,
)
_MARKUP = re.compile(
    r"<\|[^|<>]{1,40}\|>|<<SYS>>|\[/?INST\]|</?(?:system|assistant|user|judge|verdict|score|grade)>"
    r"|[\"']?\bverdict\b[\"']?\s*[:=]|[\"']?\bmet\b[\"']?\s*:\s*\{|\b(?:BEGIN|END) [0-9a-f]{16}\b"
    r"|^[ \t]*+(?:system|assistant|judge|grader)\s*:",
    re.IGNORECASE | re.MULTILINE,
)
_ORDERS = re.compile(
    r"\b(?:ignore|disregard|forget|override)\b[^.\n]{0,40}\b(?:instruction|prompt|rule|above"
    r"|previous|reference|criteria)"
    r"|\b(?:mark|grade|judge|rate|score|treat|accept|count|consider)\b[^.\n]{0,30}\b(?:this|answer"
    r"|response|it|me)\b[^.\n]{0,20}\b(?:correct|right|true|full|met|pass)"
    r"|\b(?:you are|as) (?:a|an|the) (?:judge|grader|evaluator|language model|ai)\b"
    r"|\bdear (?:judge|grader|evaluator)\b",
    re.IGNORECASE,
)
_HIDDEN = re.compile(  # control characters, overridden directions, tags, private and lone halves
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\uf8ff\U000e0000-\U0010ffff]"
)
_SEPARATOR = re.compile(r"[,;\n|]|\b(?:or|and)\b", re.IGNORECASE)


def extracted(response_text: str, *, whole: bool = False) -> str | Verdict:
    """The answer of a response, without its reasoning, or `wrong` where it has none.

    That is the span which it marks as its answer. `whole` keeps all that follows the thinking.
    """
    found = tags.answer_of(response_text)
    if isinstance(found, Verdict):
        return found
    said = extract.statement(found)
    if whole:
        return said
    span = next(extract.spans(found), None)
    if span is not None and span.rule in ("boxed", "phrase"):
        return span.text.strip()
    return said


def refuse(answer: str, gold: str | None, *, max_chars: int) -> Verdict | None:
    """`wrong` for an answer that is not worth a judge; None for one that may be asked about."""
    text = unicodedata.normalize("NFKC", answer).strip()
    if not text:
        return verdict.wrong("no answer", "the answer is empty")
    if len(text) > max_chars:
        return verdict.wrong("gate", f"{len(text)} characters are more than {max_chars}")
    if _HIDDEN.search(text):
        return verdict.wrong("gate", "control characters")
    same = gold is not None and _plain(text) == _plain(unicodedata.normalize("NFKC", gold))
    if same:
        return None
    if not _CONTENT.search(text):
        return verdict.wrong("gate", f"no content: {text[:40]!r}")
    if _OPENERS.fullmatch(text.strip("\"'`*#>-. \n")):
        return verdict.wrong("gate", f"an opener, not an answer: {text[:40]!r}")
    if found := _MARKUP.search(text) or _ORDERS.search(text):
        return verdict.wrong("gate", f"speaks to the judge: {found[0][:60]!r}")
    if gold is not None and _alternatives(text) > MAX_ALTERNATIVES + _alternatives(gold):
        return verdict.wrong("gate", "a spray of alternatives")
    return None


def _plain(text: str) -> str:
    """Letters and digits alone, or all signs where there are none."""
    return re.sub(r"[\W_]+", "", text).casefold() or "".join(text.split())


def _alternatives(text: str) -> int:
    """How many different short parts a text lists; sentences with commas are no list."""
    parts = {part.strip() for part in _SEPARATOR.split(text)}
    return sum(1 for part in parts if part and len(part.split()) <= 3)
