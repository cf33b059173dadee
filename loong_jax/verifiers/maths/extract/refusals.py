"""Responses that give up, ask back or break off, whose numbers are those of the question.

Only the writer's own words refuse. What is said of the problem ("cannot be determined") is an
answer, and so is what is stated after a refusal ("I could not see it, but then x = 12").
"""

import re

from loong_jax.data import response
from loong_jax.verifiers.maths.extract import closing, prose, statements
from loong_jax.verifiers.maths.reading import number_words
from loong_jax.verifiers.maths.wording import phrases

MAX_CHARS = 6000  # from the end
_CLAUSES = re.compile(
    r"(?<=[.!?;])\s+|\n+|,?\s+(?=(?:so|but|however|therefore|thus|hence|then|until|yet|because|"
    r"although|and (?:so|then|thus|hence|i))\b)",
    re.IGNORECASE,
)
_ANYWAY = r"(?:really|simply|just|currently|still|honestly|also|sadly|unfortunately|therefore)"
_NOT = (
    r"(?:(?:can(?:not|'t| not)|could(?: not|n't))(?: seem to| even| manage to)?|"
    r"(?:(?:am|was|'m|feel) )?(?:not able|unable) to|wasn't able to|"
    r"(?:have not|haven't) been able to|(?:it )?is not possible for me to|"
    r"(?:won't|will not|would not|wouldn't) be able to|(?:have )?(?:failed|fail) to|"
    r"(?:do not|don't|did not|didn't) (?:know|see|understand)(?: how)? to|did not manage to|"
    r"didn't manage to)"
)
_VALUE = (
    r"(?:answers?|solutions?|values?|results?|approach|way|method|idea|problem|question|task|"
    r"exercise|it|this|that|one|anything)"
)
_ITS = (
    r"(?:(?:the|an?|any|this|that|its|your|my|these|such|final|correct|right|exact|definite|"
    r"definitive|consistent|valid|numerical|numeric|single|good|suitable|clear|full|unique) )*"
)
_TRIES = (
    r"(?:(?:determine|solve|compute|calculate|evaluate|figure|answer|work|decide|help|tell|"
    r"assist|finish|view|continue)\b|"
    rf"(?:find|get|give|provide|obtain|reach|derive|see|complete|finish|arrive at|come up with|"
    rf"produce|identify|do|make) {_ITS}{_VALUE}\b(?! (?:other|simpler|larger|smaller|better)))"
)
_UNLIKE = (  # "I cannot solve it directly", "I could not find a simpler form"
    r"(?!.*\b(?:directly|by hand|by factoring|explicitly|easily|immediately|at first|initially|"
    r"simpler|further|another|other|smaller|larger|without)\b)"
)
_OWN = rf"\bI(?:\s+{_ANYWAY})*\s*"
_STARTS = r"\A\W*(?:(?:but|and|so|sorry|apologies|unfortunately|however|well|hmm|though)\b[\s,:]*)*"
_REFUSES = re.compile(
    rf"{_UNLIKE}.*?(?:(?:{_OWN}|{_STARTS}(?:I\s*)?|\b(?:and|but|or) ){_NOT} {_TRIES}|"
    rf"{_OWN}(?:have|had|'ve|'ve got) (?:absolutely |really )?(?:no|0|zero) (?:idea|clue)|"
    rf"{_STARTS}(?:no|zero|0) (?:idea|clue)\b|"
    rf"{_OWN}(?:must |will |have to |'ll )?(?:give up|gave up|surrender)\b|"
    rf"{_OWN}(?:have )?(?:do not|don't|did not|didn't) (?:know|have)\b.{{0,20}}\b(?:answer|value|"
    r"solution|enough|this|that|it|result)\b|"
    rf"{_STARTS}I (?:do not|don't) know\W*\Z|"
    rf"{_STARTS}no (?:final )?answer (?:was |could be |is )?(?:found|given|known|reached)|"
    rf"{_OWN}(?:must |have to |will )?(?:refuse|decline|skip)\b|"
    rf"{_OWN}(?:am|'m|was|got|get|have got)(?: \w+)? stuck\b|"
    rf"{_OWN}(?:do not|don't|cannot|can't) (?:see|read|open|access|understand) (?:(?:the|this|your|"
    r"any|that|attached) )*(?:figure|image|picture|diagram|graph|table|file|question|problem|task|"
    r"exercise|statement)\b|"
    rf"{_OWN}(?:have |'ve )?r[au]n out of (?:time|ideas|space|tokens)|"
    rf"{_OWN}(?:have not|haven't|did not|didn't) (?:yet )?(?:solved?|finish(?:ed)?|"
    rf"(?:found|find) {_ITS}(?:answer|value|solution|result))\b|"
    rf"\b(?:so |but )?{_OWN}(?:have|had) no (?:final )?(?:answer|solution|result)\b|"
    rf"{_STARTS}no conclusion (?:was |is |could be )?(?:reached|drawn)|"
    rf"{_OWN}(?:must |will |have to |'ll )?leave (?:it|this|that|the answer) (?:blank|empty|open|"
    r"unanswered|undecided)\b|"
    r".*?\band could not finish\b)",
    re.IGNORECASE | re.DOTALL,
)
_MAY_REFUSE = re.compile(  # some of it is in all that refuses
    r"not\b|n't|\b(?:unable|fail|failed|no|zero|0|gave|give|surrender|refuse|decline|skip|stuck|"
    r"ran|run|leave)\b",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"\b(?:could|can|would|will) you (?:please |kindly |perhaps |also |maybe )*(?:clarify|specify|"
    r"post|provide|share|tell me|give me|state|send|explain|repeat|rephrase|restate|upload|"
    r"confirm|elaborate|write out|check)\b|"
    r"\bplease (?:clarify|specify|post|provide|share|tell me|state|send|upload|rephrase|restate)\b|"
    r"\bI(?:'d| would| will|'ll)? (?:first |also |still )?need (?:to (?:see|know)|more|the|you)\b|"
    r"\b(?:please|just) let me know\b(?!,? if (?:you|anything|something|there|any|this|it|that)\b)|"
    r"\blet me know,? (?:and|so|then|what|which|whether|how)\b|"
    r"\b(?:what|which)\b.{0,40}\b(?:do|did) you mean\b|\bis meant by\b|"
    r"\bin your (?:question|problem|exercise)\?",
    re.IGNORECASE,
)
_ANNOUNCES = re.compile(  # at the very end: "and we must count the arrangements"
    r"\b(?:we|I)(?:'ll)?(?: (?:now|still|then|next|also|first|must|should|will|need to|have to))*"
    r" (?:count|find|determine|compute|check|consider|calculate|solve|examine|evaluate|continue|"
    r"proceed)\b[^\d$\\=]*\Z",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(  # "51 or maybe not"
    r"\bor (?:maybe|perhaps|possibly|probably) (?:not|something else|another(?: one)?)\W*\Z",
    re.IGNORECASE,
)
_UNDECIDED = re.compile(  # "I cannot tell which is meant", at the end
    rf"{_OWN}(?:cannot|can't|could not|couldn't|do not|don't|am not|'m not) "
    r"(?:tell|say|decide|know|sure|certain)(?: of)? (?:which|what)\b[^\d\\$=]*\Z",
    re.IGNORECASE,
)
_HEDGED = re.compile(  # "31 is merely an upper bound", "the exact value remains unknown"
    r"\b(?:merely|only|just)\s+(?:an?|the)\s+(?:(?:upper|lower|rough)\s+)?(?:bound|estimate|guess|"
    r"approximation|supremum|infimum|conjecture)\b|只是一个?[上下]界|准确值[^,.]{0,4}(?:无法|不能)|"
    r"\b(?:exact|true|precise|actual)\s+(?:\w+\s+)?(?:minimum|maximum|value|answer|number)\b[^.]{0,12}"
    r"\b(?:(?:could|can)\s*(?:not|n't)\s+be\s+\w+|remains?\s+(?:un\w+|open|to))",
    re.IGNORECASE,
)
_BROKEN = re.compile(  # at the very end: "and from here it remains to"
    r"\b(?:is|are|was|to|the|of|and|or|so|that|then|thus|hence|therefore|by|with|we|equals?|be|get|"
    r"gives?|obtain|which|where|whose|when|because|since|if|but|an|than|into|between)\s*\Z|"
    r"[\u4e00-\u9fff$\d\s][以得为且则即于和与将由]\s*\Z|(?:[a-z]{2}|[\u4e00-\u9fff]|option [A-H])\s*,\s*\Z"
)
_SUPPOSES = re.compile(r"\b(?:perhaps|maybe|suppose|assume|excluded|ruled out)\b", re.IGNORECASE)
_MATHS = re.compile(
    r"[\d\\$=\u03c0\u221a\u221e]|\b(?:yes|no|true|false|zero|one|two|three|four|five|six|seven|"
    r"eight|nine|ten|twelve|infinity)\b|\([A-H]\)|\b[A-H]\Z",
    re.IGNORECASE,
)
_CONCLUDES = re.compile(
    r"\b(?:so|thus|hence|therefore|finally|eventually|answer|result|instead|then|gives?|yields?|"
    r"get|obtain|guess|must be|turns out|equals?|conclude|it is|it's)\b|"
    r"\b(?:sum|total|value|limit|area|number|probability|integral|product|minimum|maximum)\b"
    r"[^.]{0,30}\b(?:is|are)\b",
    re.IGNORECASE,
)
_STATES = re.compile(r"=|\b(?:is|are)\b", re.IGNORECASE)
_NOTHING = re.compile(
    r"\b(?:there (?:is|are|exists?)|has|have) no\b|\bnone exists?\b|\bnot exist\b"
)
_GIVEN = re.compile(r"\bthere (?:is|are)\b|\b(?:given|too|tried|trying|hard|if)\b", re.IGNORECASE)
_PROMISES = re.compile(r"\bI(?:'ll|'d| will| can| could| would)\b(?! (?:say|guess|answer)\b)")
_WORDS = re.compile(r"(?<!\\)\b[A-Za-z]{3,}")


def gives_up(text: str) -> bool:
    """Whether it refuses, asks back, takes back or announces more, and states no answer."""
    if response.boxes(text):
        return False
    body = statements.statement(text)[-MAX_CHARS:].replace("\u2019", "'").replace("**", "")
    body = "\n".join(" ".join(line.split()) for line in body.splitlines() if line.strip())
    if _HEDGED.search(prose.last_sentence(body)):
        return True
    if _TAKEN_BACK.search(body) or _UNDECIDED.search(body):
        return True
    if _BROKEN.search(body) and not any(_MATHS.search(span.text) for span in closing.spans(body)):
        return True
    clauses = [clause for clause in _CLAUSES.split(body) if clause.strip()]
    refusing: list[int] = []
    if _MAY_REFUSE.search(body) is not None:
        refusing = [i for i, clause in enumerate(clauses) if _REFUSES.match(clause[:400])]
    asking = [i for i, clause in enumerate(clauses) if _ASKS.search(clause[:400])]
    announced = _ANNOUNCES.search(clauses[-1]) if clauses else None
    breaks_off = announced is not None and number_words.in_digits(announced[0]) == announced[0]
    if not refusing and not asking and not breaks_off:
        return False
    others = [c for i, c in enumerate(clauses) if i not in refusing and i not in asking]
    if any(_MATHS.search(span.text) for span in closing.spans(" ".join(others))):
        return False
    if phrases.is_nothing(prose.last_sentence(body)):
        return False
    last = max(refusing, default=-1)
    if refusing and not any(map(_settles, clauses[last + 1 :])):
        return True
    if breaks_off and others and (announced := _ANNOUNCES.search(others[-1])):
        before = others.pop()[: announced.start()]
        if _MATHS.search(before) and ("=" in before or _CONCLUDES.search(before)):
            return False
    return not refusing and not any(map(_settles, others))


def _settles(clause: str) -> bool:
    """Whether a clause states something: "so x = 12", "the sum is 5", a formula alone."""
    clause = clause.strip()
    if _NOTHING.search(clause) and not _REFUSES.match(clause[:400]):
        return True
    if clause.endswith("?") or not _MATHS.search(clause) or _REFUSES.match(clause[:400]):
        return False
    if any(rule.search(clause) for rule in (_ASKS, _PROMISES, _SUPPOSES)):
        return False
    if not _WORDS.search(clause):
        return any(character.isdigit() or character in "\\$=" for character in clause)
    if phrases.yes_or_no(clause) is not None or _CONCLUDES.search(clause):
        return True
    return _STATES.search(clause) is not None and not _GIVEN.search(clause)
