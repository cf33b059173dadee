"""Answers that are words, or notation that is no arithmetic.

`phrases` gives normal forms, synonyms, and what says that there is nothing; `choices` reads letters
of options, `dates` also the time of day. `chemistry`, `formulas` of logic and `groups` have
a notation of their own.
"""
