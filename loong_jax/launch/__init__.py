"""How a run starts: meshes and recipes."""
