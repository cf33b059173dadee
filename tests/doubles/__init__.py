"""Small things for tests. Import the modules: verifier workers must not load JAX through here."""
