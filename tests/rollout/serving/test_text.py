"""Text as it comes, against the text of all tokens cut at the first stop string."""

from hypothesis import example, given
from hypothesis import strategies as st

from loong_jax.rollout.text_stream import TextStream


def decode(tokens):
    """Tokens are bytes, as in a byte-level vocabulary without merges."""
    return bytes(tokens).decode("utf-8", "replace")


def all_at_once(text, stops):
    cuts = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(cuts)] if cuts else text


def streamed(tokens, stops):
    stream, pieces = TextStream(decode, stops), []
    for token in tokens:
        pieces.append(stream.push(token))
        if stream.is_stopped:
            break
    return stream, pieces, "".join(pieces) + stream.finish()


texts = st.text(st.sampled_from("abé漢😀 \n"), max_size=20)


@given(texts, st.lists(st.text(st.sampled_from("abé"), min_size=1, max_size=4), max_size=3))
def test_pieces_make_the_whole_text(text, stops):
    stream, _, found = streamed(text.encode(), stops)
    # Of several stop strings the one complete first decides, which a search in the whole text finds
    # too unless one contains another.
    if any(a != b and a in b for a in stops for b in stops):
        assert all_at_once(text, stops).startswith(all_at_once(found, stops))
    else:
        assert found == all_at_once(text, stops)
    assert stream.is_stopped == any(stop in text for stop in stops)


PARTS = [b"\xff", b"\xa2", b"\xe6\xbc", b"a", *(c.encode() for c in "\ufffdé漢😀")]


@given(st.lists(st.sampled_from(PARTS), max_size=20).map(b"".join) | st.binary(max_size=30))
@example("\ufffd\ufffd😀".encode())
def test_bytes_that_are_no_text_come_out_and_spoil_no_character_behind_them(data):
    stream = TextStream(decode)
    found = "".join(stream.push(byte) for byte in data) + stream.finish()
    assert found == decode(data)


def test_a_character_comes_when_it_is_whole():
    _, pieces, _ = streamed("a😀b".encode(), [])
    assert pieces == ["a", "", "", "", "😀", "b"]


def test_what_may_become_a_stop_string_waits():
    _, pieces, found = streamed(b"xEND", ["ENDE"])
    assert pieces == ["x", "", "", ""]
    assert found == "xEND"
    stream, pieces, found = streamed(b"x\nEnd\nENDy", ["\nEND"])
    assert found == "x\nEnd"
    assert stream.is_stopped


def test_unknown_tokens_are_held_for_a_moment_only():
    stream = TextStream(lambda tokens: "\ufffd" * len(tokens))
    assert [stream.push(0) for _ in range(9)].count("") < 9
    assert len("".join(stream.push(0) for _ in range(11)) + stream.finish()) >= 11
