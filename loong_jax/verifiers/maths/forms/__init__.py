"""What a node is, and other forms of the same thing, by what may be written in several ways.

`kinds` tells nodes apart; `labels` reads the words after an answer, `naming` the left sides before
it; `renaming` gives an answer its gold's names; `signs`, `lists`, `matrices`, `quotients` and
`quantities` rewrite what their names say.
"""
