"""The modules that run inside the sandbox, sent as text to a bare Python.

They import each other, in this order, and the standard library only.
"""

ORDER = ("system", "program", "init", "usage", "call", "zygote")
