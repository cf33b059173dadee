"""Commands that say how a formula looks and nothing of what it means: they are left out.

Colours, room, tags and what is set invisibly go with their arguments; what is coloured stays.
"""

import re

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
