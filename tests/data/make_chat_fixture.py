"""Writes chat_fixture.json: the cases of `chat_cases` as transformers renders them.

.venv-peers/bin/python -m tests.data.make_chat_fixture
"""

import json
from pathlib import Path

from tests.data import chat_cases

FIXTURE = Path(__file__).parent / "chat_fixture.json"


def transformers_text(template, case):
    """The text of `apply_chat_template`, or None where it raises."""
    import tokenizers
    import transformers

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1}, "<s>"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **chat_cases.TOKENS)
    options = dict(case.options)
    options.setdefault("add_generation_prompt", not options.get("continue_final_message"))
    try:
        return tokenizer.apply_chat_template(
            case.messages, tools=case.tools, chat_template=template, tokenize=False, **options
        )
    except Exception:
        return None


if __name__ == "__main__":
    import transformers

    found = [
        transformers_text(chat_cases.TEMPLATES[name], case) for name, case in chat_cases.all_cases()
    ]
    record = {"transformers": transformers.__version__, "texts": found}
    FIXTURE.write_text(json.dumps(record, indent=0, ensure_ascii=True) + "\n")
    print(len(found), "texts,", sum(text is None for text in found), "refused")
