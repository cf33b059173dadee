"""LoongEnv: new problems out of seeds, their answers computed by programs that are executed.

    candidates            seeds, and where each candidate of them ends
    strategies            new questions by few-shot, self-instruct or evol-instruct
    gates                 what is refused; the answer: the output of a program
    judging               a judge's opinion; chains of thought that must reach the same answer
    command, summary      all stages in a row; their files

Source: Loong, arXiv 2509.03059, sections 2 and 3.
"""
