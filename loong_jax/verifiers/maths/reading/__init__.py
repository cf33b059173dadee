"""From text to expressions.

`tokens` cut a text, `parser` builds a tree of them by rules: `relations`, `sums`, `postfixes`,
`primaries`, which know `numerals`, `words`, `variables`, `brackets`, `integrals`, `pieces`, units
and Python's `objects`. `readings` sets the rules and asks the parser for all that a text may stand
for, with what is written in words: `number_words`, `left_sides`, `parameters` and domains.
"""
