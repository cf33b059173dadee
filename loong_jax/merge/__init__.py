"""Fusing experts in parameter space, as pure functions over pytrees."""
