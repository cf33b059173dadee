"""Short families over letters, bits and signs."""

from tests.synth.scripted.resyn_family import Family

_WORD = 'return {"s": "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(n))}'

FAMILIES = (
    Family(
        name="caesar", title="Letters moved along the alphabet", keywords=("cipher", "alphabet"),
        draw="""
        s = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(n))
        return {"s": s, "k": rng.randint(1, 3)}
        """,
        asks='f"cae {state[\'k\']} {state[\'s\']}"',
        solve='return "".join(chr((ord(c) - 97 + state["k"]) % 26 + 97) for c in state["s"])',
    ),
    Family(
        name="positions", title="Places of letters in the alphabet", keywords=("alphabet", "code"),
        draw=_WORD, asks='"pos " + state["s"]',
        solve='return " ".join(str(ord(c) - 96) for c in state["s"])', sizes=(1, 2, 3, 5, 7),
    ),
    Family(
        name="vowels", title="The vowels of a word", keywords=("filter", "vowels"),
        draw="""
        s = [rng.choice("abcdefghiouxyz") for _ in range(n)]
        s[rng.randrange(n)] = rng.choice("aeiou")
        return {"s": "".join(s)}
        """,
        asks='"vow " + state["s"]',
        solve='return "".join(c for c in state["s"] if c in "aeiou")', sizes=(3, 4, 6, 8, 10),
    ),
    Family(
        name="run_length", title="Run-length code", keywords=("compression", "repetition"),
        draw="""
        s, last = "", ""
        for _ in range(n):
            last = rng.choice([c for c in "abcd" if c != last])
            s += last * rng.randint(1, 4)
        return {"s": s}
        """,
        asks='"rle " + state["s"]',
        solve='return "".join(f"{len(list(g))}{c}" for c, g in itertools.groupby(state["s"]))',
        imports=("itertools",), sizes=(2, 3, 4, 5, 6),
    ),
    Family(
        name="find_letter", title="Where a letter stands", keywords=("search", "index"),
        draw="""
        s = rng.sample("abcdefghijklmnopqrstuvwxyz", n)
        return {"s": "".join(s), "c": rng.choice(s)}
        """,
        asks='f"at {state[\'c\']} {state[\'s\']}"',
        solve='return str(state["s"].index(state["c"]) + 1)', sizes=(4, 6, 9, 13, 18),
    ),
    Family(
        name="exclusive_or", title="Exclusive or of two rows of bits", keywords=("logic", "bits"),
        draw="""
        a, b = ("".join(rng.choice("01") for _ in range(n)) for _ in range(2))
        return {"a": a, "b": b}
        """,
        asks='f"xor {state[\'a\']} {state[\'b\']}"',
        solve="""
        return "".join("01"[x != y] for x, y in zip(state["a"], state["b"]))
        """, sizes=(3, 4, 5, 7, 9),
    ),
    Family(
        name="majority", title="Majority of three rows of bits", keywords=("voting", "bits"),
        draw='return {"r": ["".join(rng.choice("01") for _ in range(n)) for _ in range(3)]}',
        asks='"maj " + " ".join(state["r"])',
        solve='return "".join(max(c, key=c.count) for c in zip(*state["r"]))',
        sizes=(3, 4, 5, 7, 9),
    ),
    Family(
        name="parity", title="Running parity of bits", keywords=("parity", "bits"),
        draw='return {"s": "".join(rng.choice("01") for _ in range(n))}',
        asks='"par " + state["s"]',
        solve="""
        return "".join(str(state["s"][: i + 1].count("1") % 2) for i in range(len(state["s"])))
        """, sizes=(5, 6, 7, 9, 11),
    ),
    Family(
        name="to_binary", title="Numbers in binary", keywords=("binary", "conversion"),
        draw='return {"a": rng.randrange(2, 2 ** n)}',
        asks='f"bin {state[\'a\']}"',
        solve='return f"{state[\'a\']:b}"',
        sizes=(5, 6, 7, 8, 10),
    ),
    Family(
        name="from_binary", title="Value of binary digits", keywords=("binary", "conversion"),
        draw='return {"s": "1" + "".join(rng.choice("01") for _ in range(n))}',
        asks='"dec " + state["s"]',
        solve='return str(int(state["s"], 2))',
        sizes=(5, 6, 7, 8, 9),
    ),
    Family(
        name="closing", title="Brackets that are still open", keywords=("stack", "brackets"),
        draw="""
        s, open_now = "", ""
        while len(s) < 2 * n or not open_now:
            if open_now and rng.random() < 0.35:
                s, open_now = s + ")]}"["([{".index(open_now[-1])], open_now[:-1]
            else:
                bracket = rng.choice("([{")
                s, open_now = s + bracket, open_now + bracket
        return {"s": s}
        """,
        asks='"cls " + state["s"]',
        solve="""
        need = []
        for c in state["s"]:
            if c in "([{":
                need.append(")]}"["([{".index(c)])
            else:
                need.pop()
        return "".join(need[::-1])
        """,
    ),
    Family(
        name="permute", title="Letters put in another order", keywords=("permutation", "order"),
        draw="""
        order = rng.sample(range(1, n + 1), n)
        return {"p": order, "s": rng.sample("abcdefghijklmnop", n)}
        """,
        asks='"prm " + "".join(map(str, state["p"])) + " " + "".join(state["s"])',
        solve='return "".join(state["s"][i - 1] for i in state["p"])', sizes=(3, 4, 5, 7, 9),
    ),
    Family(
        name="inverse", title="Inverse of a permutation", keywords=("permutation", "inverse"),
        draw='return {"p": rng.sample(range(1, n + 1), n)}',
        asks='"inv " + "".join(map(str, state["p"]))',
        solve='return "".join(str(state["p"].index(i + 1) + 1) for i in range(len(state["p"])))',
        sizes=(5, 6, 7, 8, 9),
    ),
    Family(
        name="walk", title="Where a walk on a grid ends", keywords=("navigation", "grid"),
        draw='return {"s": "".join(rng.choice("urdl") for _ in range(n))}',
        asks='"walk " + state["s"]',
        solve="""
        x = state["s"].count("r") - state["s"].count("l")
        y = state["s"].count("u") - state["s"].count("d")
        return f"{x},{y}"
        """,
        sizes=(3, 5, 7, 9, 12),
    ),
    Family(
        name="cells", title="One step of a ring of cells", keywords=("automaton", "grid"),
        draw='return {"s": "".join(rng.choice("01") for _ in range(n))}',
        asks='"ca " + state["s"]',
        solve="""
        s = state["s"]
        return "".join(str(int(s[i - 1] != s[(i + 1) % len(s)])) for i in range(len(s)))
        """, sizes=(5, 6, 7, 8, 10),
    ),
    Family(
        name="machine", title="A machine of three states", keywords=("automaton", "state"),
        draw="""
        table = {f"{q}{c}": rng.randrange(3) for q in range(3) for c in "ab"}
        return {"t": table, "s": "".join(rng.choice("ab") for _ in range(n))}
        """,
        asks="""(
        "fsm " + " ".join("".join(str(state["t"][f"{q}{c}"]) for c in "ab") for q in range(3))
        + " " + state["s"]
    )""",
        solve="""
        q, path = 0, ""
        for c in state["s"]:
            q = state["t"][f"{q}{c}"]
            path += str(q)
        return path
        """, sizes=(3, 4, 6, 8, 10),
    ),
)  # fmt: skip
