"""LoongEnv: new problems out of seeds, their answers computed by programs that are executed.

seeds -> a strategy (few_shot, self_instruct, evol_instruct) poses questions -> gates, duplicates ->
coding writes the program -> execution gives the answer, whatever the author stated -> judging ->
solving writes chains of thought that must agree. Source: Loong, arXiv 2509.03059, sections 2 and 3.
"""
