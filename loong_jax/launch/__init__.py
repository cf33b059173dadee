"""Ways onto clusters."""
