"""Turns with tools: the policy calls, its sample is paused, answers come back as tokens.

agent                    tools, Python's among them; an agent: toolbox, template of turns, bounds
paused                   calls under way; samples that wait for them, and their caches
mcp_tools                tools of MCP servers
"""
