"""`loong bench quickstart-ablation`: what the parts of the recipe are worth, on the miniature."""
