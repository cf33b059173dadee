"""What words and LaTeX commands mean. Tables only."""
# ruff: noqa: RUF001 - look-alikes are what these tables are about

GREEK = frozenset(
    str.split(
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda "
        "mu nu xi omicron rho varrho sigma tau upsilon phi varphi chi psi omega Gamma Delta "
        "Theta Lambda Xi Sigma Upsilon Phi Psi Omega ell hbar nabla partial aleph"
    )
)

# every spelling of a function of numbers -> our name; `values.functions` says what it does
FUNCTIONS = {
    name: name
    for name in str.split(
        "sin cos tan cot sec csc sinh cosh tanh coth sech csch exp log sqrt abs floor ceiling gcd lcm "
        "max min factorial binomial gamma erf sign re im arg conjugate root det mod asin acos atan acot "
        "asec acsc asinh acosh atanh atan2 lambertw permutations norm ln cis log10 log2 cbrt zeta"
    )
} | dict(
    pair.split(":")
    for pair in str.split(
        "lg:log10 arcsin:asin arccos:acos arctan:atan arccot:acot arcsec:asec arccsc:acsc "
        "arcsinh:asinh arccosh:acosh arctanh:atanh arsinh:asinh arcosh:acosh artanh:atanh tg:tan "
        "ctg:cot cosec:csc Abs:abs ceil:ceiling Max:max Min:min Mod:mod comb:binomial "
        "perm:permutations LambertW:lambertw Re:re Im:im Gamma:gamma sgn:sign Rational:ratio_of "
        "Fraction:ratio_of Integer:same Float:same float64:same mpf:same Decimal:same Pow:power "
        "Mul:times Add:plus"
    )
)
# functions that LaTeX or plain text applies to what follows without brackets: sin x
PREFIX_FUNCTIONS = frozenset(
    str.split(
        "sin cos tan cot sec csc sinh cosh tanh coth sech csch exp log ln lg arcsin arccos arctan "
        "arccot arcsec arccsc arcsinh arccosh arctanh arsinh arcosh artanh tg ctg cosec gcd lcm "
        "max min sqrt det Re Im arg sgn cis asin acos atan"
    )
)
INVERSES = {name: "a" + name for name in str.split("sin cos tan cot sec csc sinh cosh tanh")}

CONSTANTS = {"pi": "pi", "Pi": "pi", "infty": "inf", "infinity": "inf", "oo": "inf", "inf": "inf"}
CONSTANT_LETTERS = {"e": "e", "i": "i"}

RELATIONS = {
    "=": "=", "==": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "=<": "<=", "=>": ">=",
    "!=": "!=", "<>": "!=",
    "\\lt": "<", "\\gt": ">", "\\le": "<=", "\\leq": "<=", "\\leqslant": "<=", "\\leqq": "<=",
    "\\ge": ">=", "\\geq": ">=", "\\geqslant": ">=", "\\geqq": ">=", "\\ne": "!=", "\\neq": "!=",
    "\\approx": "~", "\\simeq": "~", "\\doteq": "~", "\\equiv": "==", "\\in": "in",
    "\\notin": "notin", "\\to": "->", "\\rightarrow": "->", "\\mapsto": "->", "->": "->",
    ":=": "=", "\\coloneqq": "=", "\\cong": "==", "\\sim": "~", "\\propto": "propto",
    "\\perp": "perp", "\\parallel": "parallel",
    "\\subset": "subset", "\\subseteq": "subset", "\\implies": "=>", "\\Rightarrow": "=>",
    "\\iff": "<=>", "\\Leftrightarrow": "<=>",
}  # fmt: skip
FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!=", "==": "==", "~": "~"}

PRODUCTS = frozenset(("*", "\\cdot", "\\times", "\\ast", "\\bullet", "\\centerdot"))
QUOTIENTS = frozenset(("/", "\\div", "//"))

SPACING = frozenset(
    (
        "\\,", "\\;", "\\:", "\\!", "\\ ", "~", "\\quad", "\\qquad", "\\displaystyle",
        "\\textstyle", "\\limits", "\\nolimits", "\\left", "\\right", "\\big", "\\Big", "\\bigg",
        "\\Bigg", "\\bigl", "\\bigr", "\\Bigl", "\\Bigr", "\\biggl", "\\biggr", "\\middle",
        "\\rm", "\\bf", "\\it", "\\mathstrut", "\\strut", "\\thinspace", "\\medspace",
        "\\boldmath", "\\hfill", "\\noindent", "\\centering", "\\cr", "\\hline", "\\,", "\\/",
        "\\(", "\\)", "\\[", "\\]", "$", "$$", "\\nonumber", "\\scriptstyle", "\\small", "\\large",
        "\\Large", "\\LARGE", "\\huge", "\\Huge", "\\normalsize", "\\tiny", "\\null", "\\relax",
        "\\enspace", "\\ensuremath",
    )
)  # fmt: skip
# commands around an argument that is still maths
WRAPPERS = frozenset(
    str.split(
        "\\boxed \\fbox \\mathbf \\boldsymbol \\bm \\mathit \\mathcal \\mathsf \\mathscr "
        "\\mathfrak \\underline \\ensuremath \\displaystyle \\smash \\mathop "
        "\\vcenter \\mathord \\mathrel \\mathbin \\emph \\pmb"
    )
)
# commands around words
TEXT_WRAPPERS = frozenset(
    str.split(
        "\\text \\textbf \\textit \\textrm \\textsf \\texttt \\mbox \\hbox \\mathrm \\mathsf "
        "\\operatorname \\textnormal \\textup \\textsc \\mathtt \\rm \\textmd \\textsl"
    )
)
ACCENTS = frozenset(
    str.split(
        "\\vec \\hat \\bar \\tilde \\overrightarrow \\widehat \\widetilde \\overline \\dot \\ddot "
        "\\overleftrightarrow \\overleftarrow \\check \\acute"
    )
)
MATRIX_ENVIRONMENTS = frozenset(
    ("matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array", "vmatrix", "Vmatrix")
)
LIST_ENVIRONMENTS = frozenset(
    str.split("cases dcases cases* aligned align align* gathered split equation equation* gather*")
)

JOIN_WORDS = {"and": "and", "or": "or", "either": "", "both": "", "maybe": "or", "perhaps": "or",
              "possibly": "or", "alternatively": "or", "y": "and"}  # fmt: skip
LEADING_WORDS = frozenset(
    str.split(
        "the a an answer is are final result value solution solutions equals equal to be therefore "
        "thus so hence we get have it its that gives about approximately roughly exactly only just "
        "must total of there exists side area volume length sum probability option choice because "
        "roots root all for real number numbers ans domain range yes"
    )
)
# after a number they make another of it
CHANGING_WORDS = frozenset(
    str.split(
        "squared cubed factorial plus minus dozen choose mod modulo divides divided multiplied "
        "fails"
    )
)
VERBS_OF_WRITERS = frozenset(
    str.split(
        "believe think guess say claim am have had find found get got conclude choose chose "
        "suspect would will can cannot could did do know see saw use used obtain obtained feel "
        "suppose assume"
    )
)
WORDS_OF_VALUES = frozenset(
    ("pi", "oo", "inf", "infinity", "positive infinity", "negative infinity", "minus infinity")
)
COMMON_PRODUCTS = frozenset(("xy", "yz", "xz", "ab", "bc", "ac", "xyz", "abc"))  # in xy - z
NOTHING = frozenset(
    ("no solution", "no solutions", "none", "empty set", "emptyset", "empty", "no real solution",
     "no real solutions", "there is no solution", "there are no solutions", "does not exist",
     "no such value", "the empty set", "dne")
)  # fmt: skip
EVERYTHING = frozenset(
    ("all real numbers", "all reals", "all real number", "every real number", "any real number",
     "all real x", "all real values", "the real numbers", "the set of real numbers",
     "the set of all real numbers", "reals", "real numbers")
)  # fmt: skip
MULTIPLIERS = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9,
               "trillion": 10**12, "dozen": 12, "dozens": 12, "millions": 10**6,
               "thousands": 10**3, "billions": 10**9}  # fmt: skip
GREEK_LETTERS = {
    "α": r" \alpha ", "β": r" \beta ", "γ": r" \gamma ", "δ": r" \delta ", "ε": r" \epsilon ",
    "Θ": r" \Theta ", "Γ": r" \Gamma ", "Φ": r" \Phi ", "Ψ": r" \Psi ",
    "θ": r" \theta ", "λ": r" \lambda ", "μ": r" \mu ", "ρ": r" \rho ", "σ": r" \sigma ",
    "τ": r" \tau ", "φ": r" \phi ", "ϕ": r" \phi ", "ψ": r" \psi ", "ω": r" \omega ",
    "Δ": r" \Delta ", "η": r" \eta ", "ξ": r" \xi ",
}  # fmt: skip
