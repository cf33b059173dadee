"""LoongEnv: new problems out of seeds, their answers computed by programs that are executed.

    seeds, strategies     seeds; new questions by few-shot, self-instruct or evol-instruct
    gates                 questions that are refused before anything runs
    execution             the answer: the output of a program, whatever the author stated
    judging               a judge's opinion; chains of thought that must reach the same answer
    command, summary      all stages in a row; their files

Source: Loong, arXiv 2509.03059, sections 2 and 3.
"""
