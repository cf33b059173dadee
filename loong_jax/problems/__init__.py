"""The notions of all who pose, answer or judge: the problem, the form of a response, the verdict.

Knows: errors.
"""
