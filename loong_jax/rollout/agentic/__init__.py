"""Turns with tools: the policy calls, its sample is paused, answers come back as tokens.

agent                    tools, and an agent: a toolbox, the template of its turns, its bounds
paused                   calls under way; samples that wait for them, and their caches
python_tool, mcp_tools   programs in the verifiers' sandbox; tools of MCP servers
"""
