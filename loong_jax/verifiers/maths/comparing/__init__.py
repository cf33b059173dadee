"""What is the same without looking the same, one kind a module, over what `nodes` are."""
