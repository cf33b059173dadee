"""Recipes: functions that return the configuration of a run."""
