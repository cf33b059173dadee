"""Carries out a recipe: stages, session, run directory, and the commands around them."""
