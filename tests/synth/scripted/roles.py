"""Who plays which prompt, and which defects there are: two literal tables."""

from tests.synth.scripted import formal_roles, loongenv_roles, resyn_defects, resyn_roles
from tests.synth.scripted.play import COMMON, Defect, Role

ROLES: dict[str, Role] = {  # prompt name -> the function that answers it
    "loongenv/few_shot": loongenv_roles.few_shot,
    "loongenv/self_instruct": loongenv_roles.self_instruct,
    "loongenv/evolve": loongenv_roles.evolve,
    "loongenv/score": loongenv_roles.score,
    "loongenv/code": loongenv_roles.code,
    "loongenv/judge": loongenv_roles.judge,
    "loongenv/solve": loongenv_roles.solve,
    "formal/formalise": formal_roles.formalise,
    "formal/back_translate": formal_roles.back_translate,
    "formal/judge": formal_roles.judge,
    "judge/reasoning": loongenv_roles.match,
    **resyn_roles.ROLES,
}

DEFECTS: tuple[Defect, ...] = (
    *COMMON,
    *loongenv_roles.DEFECTS,
    *resyn_defects.DEFECTS,
    *formal_roles.DEFECTS,
)
RATES = {defect.name: defect.rate for defect in DEFECTS}
