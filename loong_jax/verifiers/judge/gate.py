"""The content gate: answers that no judge should see, because judges are known to accept them.

Judges reward answers without content (arXiv 2507.08794, "master keys": up to 90 % of the time), and
texts that talk to them. Such answers are wrong, unless the gold says the same.
"""

import re
import unicodedata

from loong_jax.problems import verdict
from loong_jax.problems.verdict import Verdict
from loong_jax.verifiers.answers import extract

MAX_ALTERNATIVES = 6  # beyond as many as the gold has

_LAYOUT = re.compile(r"\\(?:boxed|fbox|text\w*|math\w+|left|right|q?quad)(?![a-z])", re.IGNORECASE)
_SIGN = re.compile(
    r"[\u2100-\u214f\u2200-\u22ff±]|\\(?:infty|emptyset|varnothing)|(?<!\d)(?!100 ?% [A-Za-z])\d"
)
_TOKEN = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")
# of a choice; "a" and "I" go on as words do
_LETTER = re.compile(r"(?<!['\u2019])\b[A-Za-z]\b(?!['\u2019]| [^\W\d_])")
_WORDS = frozenset(
    _TOKEN.findall("""
    a an the this that these it its it's is are be been to of in on for by with and or so now then
    we we'll i i'll i'm you me my our us will would can could shall should must need needs have has
    going go get out at here here's there what first next before below above following follows as
    each every once very carefully one well sure certainly course ok okay alright please just final
    full fully complete completely detailed right exact exactly same given la el es le der die das
    ist et est the o a è
""")
)  # which say nothing by themselves, and may be all of an answer
_OPENERS = frozenset(
    _TOKEN.findall("""
    let let's lets think thinking thought thoughts solve solving find begin start starting read
    reading analyze analyse analyzing analysis break down figure tackle understand explain
    explanation approach examine step steps process reasoning solution solutions answer answers
    problem question result conclusion proof correct student student's reference matches match
    identical gold respuesta solución solucion réponse reponse lösung losung antwort resposta
    решение ответ حل الجواب 풀이 정답 かいせつ
""")
)  # which open an answer and are none
_INTENT = re.compile(  # to do something, without a number or a sign of what comes out
    r"(?:ok(?:ay)?|alright|so|well|first|now|sure)?\W*(?:let'?s|let us|let me"
    r"|(?:first,? )?(?:i|we)(?:'ll| will| need to| have to| must| can| should)"
    r"|to (?:solve|find|answer|determine|compute|calculate))\s[^\d=:;]{1,150}"
    r"|(?:解?\W*)(?:首先|让我们|我来|我们先|我们来|我们需要|接下来)[^\d=是为A-Za-z]{0,40}",
    re.IGNORECASE,
)
_CJK_OPENERS = re.compile(
    r"(?=.*(?:分析|思考|问题|题|答案|解答|过程|步骤|如下|通り|解説|答え|解$))"
    r"(?:首先|然后|接下来|我们|让|来|先|分析|解决|思考|看|一下|这个|这道|问题|题目|题意|题|答案|答え|最终|如下"
    r"|是|为|的|解答|解説|解|过程|步骤|一步步|逐步|好的|参考|以下|下面|根据|详细|给出|需要|仔细|は|の|通り|です|まず|を|\W)+"
)
_MARKUP = re.compile(
    r"<\|[^|<>]{1,40}\|>|<<SYS>>|\[/?INST\]|</?(?:system|assistant|user|judge|verdict|score|grade)>"
    r"|[\"']?\bverdict\b[\"']?\s*[:=]|[\"']?\bmet\b[\"']?\s*:\s*\{|\b(?:BEGIN|END) [0-9a-f]{16}\b"
    r"|^[ \t]*+(?:system(?!\s*:[^\n]*[=<>])|assistant|judge|grader)\s*:",
    re.IGNORECASE | re.MULTILINE,
)
_ORDERS = re.compile(
    r"\b(?:ignore|disregard|forget|override)(?: (?:all|any|the|your|my|these|every|previous|prior"
    r"|above|earlier|of)){0,6} (?:instruction|prompt|rule|reference|criteri|guideline)"
    r"|(?:(?:^|[.!?;:,])\s*|\b(?:please|must|should|can|to|and|now|just|kindly) )"
    r"(?:mark|grade|judge|rate|score|treat|accept|count|consider)(?: (?:this|it|me|that|my|the"
    r"|answer|response|solution)){1,3}(?: as| to be| is)?(?: \w+ly)? "
    r"(?:correct|right(?! \w)|true|full(?! of)|met|pass)\b"
    r"|(?:\byou are|(?:^|[.!?,])\s*as) (?:a|an|the) (?:judge|grader|evaluator|language model|ai)\b"
    r"|\bdear (?:judge|grader|evaluator)\b",
    re.IGNORECASE | re.MULTILINE,
)
_HIDDEN = re.compile(  # control characters, overridden directions, tags, private and lone halves
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\uf8ff\U000e0000-\U0010ffff]"
)
_SEPARATOR = re.compile(r"[,;\n|]|\b(?:or|and)\b", re.IGNORECASE)


def extracted(response_text: str, *, whole: bool = False) -> str | Verdict:
    """The answer of a response, without its reasoning, or `wrong` where it has none.

    That is the span which it marks as its answer. `whole` keeps all that follows the thinking.
    """
    found = verdict.answer_of(response_text)
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
    if gold is not None and _plain(text) == _plain(unicodedata.normalize("NFKC", gold)):
        return None
    if _has_no_content(text, gold or ""):
        return verdict.wrong("gate", f"an opener, not an answer: {text[:40]!r}")
    if found := _MARKUP.search(text) or _ORDERS.search(text):
        return verdict.wrong("gate", f"speaks to the judge: {found[0][:60]!r}")
    if gold is not None and _alternatives(text) > MAX_ALTERNATIVES + _alternatives(gold):
        return verdict.wrong("gate", "a spray of alternatives")
    return None


def _has_no_content(text: str, gold: str) -> bool:
    """True if all of a text only opens or praises an answer, in words that the gold has not."""
    text = _LAYOUT.sub(" ", text).strip("\"'`*#>-. \n")
    if _SIGN.search(text) or _LETTER.search(text):
        return False
    words, golden = (_TOKEN.findall(one.casefold()) for one in (text, gold))
    if not words:
        return True
    said = [word for word in words if word not in golden]
    opens = all(word in _WORDS or word in _OPENERS for word in words)
    if opens:
        return any(word in _OPENERS for word in said)
    if any(word in words for word in golden if word not in _WORDS and word not in _OPENERS):
        return False
    names_gold = gold and not gold.isascii() and gold in text
    return not names_gold and bool(_INTENT.fullmatch(text) or _CJK_OPENERS.fullmatch(text))


def _plain(text: str) -> str:
    """Letters and digits alone, or all signs where there are none."""
    return re.sub(r"[\W_]+", "", text).casefold() or "".join(text.split())


def _alternatives(text: str) -> int:
    """The number of different short parts that a text lists; sentences with commas are no list."""
    parts = {part.strip() for part in _SEPARATOR.split(text)}
    return sum(1 for part in parts if part and len(part.split()) <= 3)
