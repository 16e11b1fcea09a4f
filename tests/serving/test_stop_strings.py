"""What a client sees of generated text does not depend on how the text arrives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.engine.serving.text import StopStrings, TextStream

ALPHABET = "abé"
stops = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=4)
texts = st.text(ALPHABET, max_size=30)
END = 999


def truncated(text: str, stops: list[str]) -> tuple[str, bool]:
    """The rule itself, read off the whole text: the first end of a stop string, and there the longest."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def cut(data: st.DataObject, sequence):
    """`sequence` in pieces, some of them empty."""
    places = sorted(data.draw(st.lists(st.integers(0, len(sequence)), max_size=8)))
    return [sequence[start:end] for start, end in zip([0, *places], [*places, len(sequence)], strict=True)]


@given(st.data(), texts, stops)
def test_pieces_of_text_add_up_to_the_truncated_text(data: st.DataObject, text: str, stops: list[str]) -> None:
    filter_ = StopStrings(stops)
    seen = ""
    expected, stopped = truncated(text, stops)
    for piece in cut(data, text):
        seen += filter_.push(piece)
        assert expected.startswith(seen)
    assert filter_.stopped == stopped
    assert seen + filter_.flush() == expected


class BytesDetokenizer:
    """Tokens are runs of bytes, which may end inside a character."""

    def __init__(self, vocabulary: list[bytes]) -> None:
        self._vocabulary, self._bytes, self._given = vocabulary, b"", 0

    def add(self, token_ids: list[int]) -> str:
        self._bytes += b"".join(self._vocabulary[token] for token in token_ids)
        return self._give(self._bytes.decode("utf-8", "ignore"))

    def flush(self) -> str:
        return self._give(self._bytes.decode("utf-8", "replace"))

    def _give(self, text: str) -> str:
        new, self._given = text[self._given :], len(text)
        return new


@given(st.data(), texts, stops, st.sampled_from(["stop", "length"]))
def test_streams_of_tokens_agree_with_the_whole(data: st.DataObject, text: str, stops: list[str], finish: str) -> None:
    vocabulary = cut(data, text.encode())
    tokens = list(range(len(vocabulary)))
    generated = [*tokens, END] if finish == "stop" else tokens
    expected, stopped = truncated(text, stops)

    def run(batches: list[list[int]]) -> tuple[str, list[int], str]:
        stream = TextStream(BytesDetokenizer(vocabulary), stops, [END])
        seen, used = "", []
        for number, batch in enumerate(batches, start=1):
            piece = stream.push(batch, finish if number == len(batches) else "")
            seen += piece.text
            used += piece.tokens
            assert expected.startswith(seen)
            if piece.finish:
                return seen, used, piece.finish
        raise AssertionError("the last piece had no finish reason")

    whole = run([generated])
    assert whole == run([[token] for token in generated] or [[]])
    assert whole == run(cut(data, generated))
    seen, used, reason = whole
    assert seen == expected
    assert reason == ("stop" if stopped else finish)
    assert used == generated[: len(used)]
    if not stopped:
        assert used == generated
    else:
        # Not a token more than it takes to complete the stop string.
        ended = b"".join(vocabulary[token] for token in used[:-1]).decode("utf-8", "ignore")
        assert not truncated(ended, stops)[1]


def test_an_incomplete_character_is_replaced_at_the_end() -> None:
    stream = TextStream(BytesDetokenizer([b"a\xc3"]), ["b"], [END])
    assert stream.push([0], "") == ("a", [0], "")
    assert stream.push([END], "stop") == ("\N{REPLACEMENT CHARACTER}", [END], "stop")
