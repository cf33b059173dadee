"""Problems made by author models: LoongEnv and ReSyn, over any OpenAI-compatible endpoint."""
