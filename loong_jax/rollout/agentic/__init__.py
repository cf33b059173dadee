"""Turns with tools: the policy calls, its sample is paused, answers come back as tokens.

agent                    tools, and an agent: a toolbox, the template of its turns, its bounds
calls                    calls under way, outside the thread that decodes
paused                   ends of turns; samples that wait for tools, and their caches
python_tool, mcp_tools   programs in the verifiers' sandbox; tools of MCP servers
"""
