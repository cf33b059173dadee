"""Problems made by author models: LoongEnv and ReSyn, over any OpenAI-compatible endpoint.

Knows: data, environments, errors, problems, sandbox, syntax, verifiers.
"""
