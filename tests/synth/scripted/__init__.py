"""The scripted author: a real HTTP server on loopback that plays every role from generators.

It stands in where no model can be reached, and plants defects at stated rates, so that every
branch of a funnel is met. What comes from it is always labelled "scripted": it shows that the
machinery works, never what a model would write.
"""

from tests.synth.scripted.play import Ask, Said
from tests.synth.scripted.server import ScriptedAuthor

__all__ = ["Ask", "Said", "ScriptedAuthor"]
