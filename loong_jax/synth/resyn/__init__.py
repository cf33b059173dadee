"""ReSyn: reasoning environments from keywords, written by a model, admitted by measurement.

keywords -> questions (what an author is asked) -> gates (mechanical, in the sandbox) -> diversity
(no duplicate) -> judge and one revision -> calibrate (levels are levels) -> packages. `pipeline`
puts them in a row; `funnel` counts what ended where.
"""
