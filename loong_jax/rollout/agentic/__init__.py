"""Turns with tools: the policy calls, its sample is paused, answers come back as tokens.

tools                    what a tool is, and the set of them that an agent has
agent                    tools, template and bounds, as a replica is given them
calls                    calls under way, outside the thread that decodes
paused                   how a turn ended; samples that wait for tools, and their caches
python_tool, mcp_tools   programs in the verifiers' sandbox; tools of MCP servers
"""
