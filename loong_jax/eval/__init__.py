"""How good a policy is: sampling problems, pass@k, intervals."""
