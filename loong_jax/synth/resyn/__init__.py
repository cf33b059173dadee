"""ReSyn: reasoning environments from keywords, written by a model, admitted by measurement.

    keywords              the source of ideas, and its audit against evaluation sets
    questions             requests to the author: ideas, modules, verdicts of a judge, a revision
    gates                 mechanical checks in the sandbox, by `instance_gates`, `reward_gates`
    diversity             no duplicates
    calibrate             levels are levels, by the rule of `calibration`
    pipeline, items       all stages in a row; every idea with its end

Environments that are kept become packages (`loong_jax.data.packages`).
"""
