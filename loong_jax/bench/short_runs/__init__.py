"""Short training runs that benches compare: how they are run, compared and drawn."""
