"""ReSyn: reasoning environments from keywords, written by a model, admitted by measurement.

    keywords              the source of ideas, and its audit against evaluation sets
    ideas                 what is asked of the author and how it is read; where every idea ended
    gates                 mechanical checks in the sandbox
    diversity             no duplicates
    calibration           levels are levels
    pipeline              all stages in a row

Environments that are kept become packages (`loong_jax.data.packages`).
"""
