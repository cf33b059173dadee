"""ReSyn: reasoning environments from keywords, written by a model, admitted by measurement.

    ideas                 keywords and their audit, what is asked, where every idea ended
    gates                 mechanical checks in the sandbox
    diversity             no duplicates
    calibration           levels are levels
    command               all stages in a row

Environments that are kept become packages (`loong_jax.data.packages`).
"""
