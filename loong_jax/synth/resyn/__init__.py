"""ReSyn: reasoning environments from keywords, written by a model, admitted by measurement.

    ideas                 keywords and their audit, what is asked, where every idea ended
    gates                 mechanical checks in the sandbox
    measures              levels are levels, and no duplicates
    command               all stages in a row

Environments that are kept become packages (`loong_jax.data.packages`).
"""
