"""Short families over digits: one command word, digits, an answer of digits."""

from tests.synth.scripted.resyn_family import Family

_DIGITS = 'return {"s": "".join(rng.choice("0123456789") for _ in range(n))}'
_TWO = """
a, b = ("".join(rng.choice("0123456789") for _ in range(n)) for _ in range(2))
return {"a": a, "b": b}
"""

FAMILIES = (
    Family(
        name="reverse", title="Digits turned around", keywords=("string", "order"),
        draw=_DIGITS, asks='"rev " + state["s"]',
        solve='return state["s"][::-1]', sizes=(2, 3, 4, 6, 8),
    ),
    Family(
        name="ascending", title="Digits in ascending order", keywords=("sorting", "order"),
        draw=_DIGITS, asks='"asc " + state["s"]',
        solve='return "".join(sorted(state["s"]))',
    ),
    Family(
        name="extremes", title="Largest digit, then smallest", keywords=("comparison", "order"),
        draw=_DIGITS, asks='"ends " + state["s"]',
        solve='return max(state["s"]) + min(state["s"])', sizes=(2, 3, 4, 6, 8),
    ),
    Family(
        name="digit_sum", title="Sum of digits modulo 10", keywords=("arithmetic", "modular"),
        draw=_DIGITS, asks='"sum " + "+".join(state["s"])',
        solve='return str(sum(map(int, state["s"])) % 10)',
    ),
    Family(
        name="alternating", title="Alternating sum modulo 10", keywords=("arithmetic", "parity"),
        draw=_DIGITS, asks='"alt " + state["s"]',
        solve="""
        total = 0
        for i, digit in enumerate(state["s"]):
            total += -int(digit) if i % 2 else int(digit)
        return str(total % 10)
        """,
    ),
    Family(
        name="product", title="Product of digits modulo 7", keywords=("arithmetic", "modular"),
        draw='return {"s": [rng.randint(1, 6) for _ in range(n)]}',
        asks='"mul " + "*".join(map(str, state["s"]))',
        solve='return str(math.prod(state["s"]) % 7)', imports=("math",), sizes=(3, 4, 5, 6, 7),
    ),
    Family(
        name="evens", title="The even digits alone", keywords=("filter", "parity"),
        draw="""
        s = [rng.choice("0123456789") for _ in range(n)]
        s[rng.randrange(n)] = rng.choice("02468")
        return {"s": "".join(s)}
        """,
        asks='"even " + state["s"]',
        solve='return "".join(d for d in state["s"] if int(d) % 2 == 0)', sizes=(3, 4, 5, 7, 9),
    ),
    Family(
        name="add_key", title="A key added to each digit", keywords=("cipher", "modular"),
        draw="""
        s = "".join(rng.choice("0123456789") for _ in range(n))
        return {"s": s, "k": rng.randint(1, 9)}
        """,
        asks='f"add {state[\'k\']} to {state[\'s\']}"',
        solve='return "".join(str((int(d) + state["k"]) % 10) for d in state["s"])',
    ),
    Family(
        name="differences", title="Differences of neighbours", keywords=("sequence", "difference"),
        draw=_DIGITS, asks='"dif " + state["s"]',
        solve="""
        s = state["s"]
        return "".join(str(abs(int(a) - int(b))) for a, b in zip(s, s[1:]))
        """, sizes=(3, 4, 5, 7, 9),
    ),
    Family(
        name="prefix_sums", title="Running sums modulo 10", keywords=("sequence", "arithmetic"),
        draw=_DIGITS, asks='"run " + state["s"]',
        solve="""
        total, found = 0, ""
        for digit in state["s"]:
            total += int(digit)
            found += str(total % 10)
        return found
        """,
    ),
    Family(
        name="swap_pairs", title="Neighbours change places", keywords=("string", "swap"),
        draw=_DIGITS, asks='"swp " + state["s"]',
        solve="""
        s = list(state["s"])
        for i in range(0, len(s) - 1, 2):
            s[i], s[i + 1] = s[i + 1], s[i]
        return "".join(s)
        """, sizes=(2, 4, 5, 7, 9),
    ),
    Family(
        name="rotate", title="Digits rotated to the left", keywords=("rotation", "string"),
        draw="""
        s = "".join(rng.choice("0123456789") for _ in range(n))
        return {"s": s, "k": rng.randint(1, n - 1)}
        """,
        asks='f"rot {state[\'k\']} {state[\'s\']}"',
        solve='return state["s"][state["k"] :] + state["s"][: state["k"]]', sizes=(3, 4, 5, 7, 9),
    ),
    Family(
        name="double", title="Every digit twice", keywords=("string", "repetition"),
        draw=_DIGITS, asks='"dbl " + state["s"]',
        solve='return "".join(d + d for d in state["s"])',
    ),
    Family(
        name="unique", title="Each digit once", keywords=("set", "duplicates"),
        draw='return {"s": "".join(rng.choice("12345") for _ in range(n))}',
        asks='"set " + state["s"]',
        solve='return "".join(dict.fromkeys(state["s"]))', sizes=(3, 5, 7, 9, 12),
    ),
    Family(
        name="complement", title="Complements to nine", keywords=("complement", "arithmetic"),
        draw=_DIGITS, asks='"cpl " + state["s"]',
        solve='return "".join(str(9 - int(d)) for d in state["s"])',
    ),
    Family(
        name="mirror", title="Digits and their mirror image", keywords=("symmetry", "palindrome"),
        draw=_DIGITS, asks='"mir " + state["s"]',
        solve='return state["s"] + state["s"][::-1]',
    ),
    Family(
        name="interleave", title="Two numbers dealt together", keywords=("merge", "interleaving"),
        draw=_TWO, asks='f"mix {state[\'a\']} {state[\'b\']}"',
        solve='return "".join(x + y for x, y in zip(state["a"], state["b"]))',
    ),
    Family(
        name="place_max", title="The larger digit of each place", keywords=("comparison", "merge"),
        draw=_TWO, asks='f"big {state[\'a\']} {state[\'b\']}"',
        solve='return "".join(max(x, y) for x, y in zip(state["a"], state["b"]))',
    ),
    Family(
        name="place_sum", title="Addition without a carry", keywords=("addition", "modular"),
        draw=_TWO, asks='f"sumv {state[\'a\']} {state[\'b\']}"',
        solve="""
        pairs = zip(state["a"], state["b"])
        return "".join(str((int(x) + int(y)) % 10) for x, y in pairs)
        """,
    ),
    Family(
        name="remainder", title="Remainder of a division", keywords=("division", "modular"),
        draw="""
        m = rng.choice([7, 8, 9])
        return {"a": rng.randrange(10 ** (n - 1), 10 ** n), "m": m}
        """,
        asks='f"mod {state[\'a\']} {state[\'m\']}"',
        solve='return str(state["a"] % state["m"])',
    ),
    Family(
        name="common_divisor", title="Greatest common divisor", keywords=("divisor", "number"),
        draw="""
        g = rng.randint(2, 4 * n)
        a, b = rng.randint(1, 3 * n), rng.randint(1, 3 * n)
        return {"a": a * g, "b": b * g}
        """,
        asks='f"gcd {state[\'a\']} {state[\'b\']}"',
        solve='return str(math.gcd(state["a"], state["b"]))', imports=("math",),
    ),
    Family(
        name="next_term", title="Next term of an arithmetic sequence", keywords=("sequence",),
        draw='return {"a": rng.randrange(10 * n), "d": rng.randint(2, 4 * n), "n": 3}',
        asks='"nxt " + " ".join(str(state["a"] + i * state["d"]) for i in range(state["n"]))',
        solve='return str(state["a"] + state["n"] * state["d"])',
    ),
    Family(
        name="recurrence", title="A recurrence of two terms", keywords=("recursion", "sequence"),
        draw='return {"a": rng.randrange(10), "b": rng.randrange(10), "n": n}',
        asks='f"fib {state[\'a\']} {state[\'b\']} x{state[\'n\']}"',
        solve="""
        a, b = state["a"], state["b"]
        for _ in range(state["n"]):
            a, b = b, (a + b) % 10
        return str(b)
        """,
        sizes=(1, 3, 5, 7, 9),
    ),
    Family(
        name="median", title="The digit in the middle by size", keywords=("statistics", "sorting"),
        draw='return {"s": [rng.randrange(10) for _ in range(2 * n - 1)]}',
        asks='"med " + "".join(map(str, state["s"]))',
        solve='return str(sorted(state["s"])[len(state["s"]) // 2])',
    ),
    Family(
        name="ranks", title="Places by size", keywords=("ranking", "order"),
        draw='return {"s": rng.sample(range(10), n)}',
        asks='"rnk " + "".join(map(str, state["s"]))',
        solve="""
        s = state["s"]
        return "".join(str(1 + sum(other < d for other in s)) for d in s)
        """, sizes=(3, 4, 5, 6, 8),
    ),
    Family(
        name="clock", title="Hours on a clock", keywords=("time", "clock"),
        draw="""
        moves = [rng.choice([-1, 1]) * rng.randint(1, 11) for _ in range(n)]
        return {"h": rng.randrange(12), "moves": moves}
        """,
        asks='f"clk {state[\'h\']}" + "".join(f"{m:+d}" for m in state["moves"])',
        solve='return str((state["h"] + sum(state["moves"])) % 12)',
    ),
    Family(
        name="postfix", title="Postfix expressions modulo 10", keywords=("stack", "expression"),
        draw="""
        words = [str(rng.randint(1, 9))]
        for _ in range(n):
            words += [str(rng.randint(1, 9)), rng.choice("+-*")]
        return {"words": words}
        """,
        asks='"rpn " + "".join(state["words"])',
        solve="""
        stack = []
        for word in state["words"]:
            if word.isdigit():
                stack.append(int(word))
                continue
            b, a = stack.pop(), stack.pop()
            stack.append({"+": a + b, "-": a - b, "*": a * b}[word] % 10)
        return str(stack[0])
        """,
        sizes=(1, 2, 3, 4, 5),
    ),
)  # fmt: skip
