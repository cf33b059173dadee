"""`loong bench synth`: whether a model learns from what was synthesised, in miniature."""
