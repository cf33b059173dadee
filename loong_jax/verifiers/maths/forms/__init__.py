"""What a node is, and other forms of the same thing, by what may be written in several ways.

`kinds` tells nodes apart and reads the words after an answer, `naming` the left sides before it;
`renaming` gives an answer its gold's names; `lists` and `quotients` rewrite what their names say.
"""
