"""Kernels of attention over many keys, of attention over a cache, and of the experts."""
