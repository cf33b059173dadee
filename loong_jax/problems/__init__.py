"""What all who pose, answer or judge know: the problem, the form of a response, the verdict.

Knows: errors.
"""
