"""The page a run leaves behind, and the charts on it."""
