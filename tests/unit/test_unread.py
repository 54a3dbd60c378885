"""What to decode so that a stretch is read: with the words before it where it would not be understood alone."""

import pytest

from chunking.timeline import Span
from pipeline.unread import attempts

WHOLE = Span(0.0, 20.0)


@pytest.mark.parametrize(
    ("hole", "speech", "expected"),
    [
        # In the middle of speech, and a pause some seconds before it: from there, else alone.
        (Span(15.0, 20.0), (Span(1.0, 9.0), Span(11.0, 19.5)), (Span(10.9, 20.0), Span(15.0, 20.0))),
        # No pause near.
        (Span(15.0, 20.0), (Span(1.0, 19.5),), (Span(12.0, 20.0), Span(15.0, 20.0))),
        # After a pause, and long enough.
        (Span(15.0, 20.0), (Span(1.0, 14.0), Span(16.0, 19.5)), (Span(15.9, 20.0),)),
        # After a pause, and a word or two.
        (Span(15.0, 20.0), (Span(1.0, 14.0), Span(18.0, 19.0)), (Span(12.0, 20.0), Span(17.9, 20.0))),
        # At the beginning, in the middle: with what comes after it as well.
        (Span(0.0, 3.0), (Span(0.5, 19.0),), (Span(0.0, 6.0), Span(0.4, 3.0))),
        (Span(8.0, 10.0), (Span(1.0, 19.0),), (Span(5.0, 13.0), Span(8.0, 10.0))),
    ],
)
def test_attempts(hole: Span, speech: tuple[Span, ...], expected: tuple[Span, ...]) -> None:
    assert attempts(hole, speech, WHOLE) == expected
