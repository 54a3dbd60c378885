"""Text that nobody said is told from text that somebody may have said."""

import pytest

from chunking.timeline import Span
from pipeline.engine import Piece
from pipeline.inventions import invented, stock, unheard


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Thank you.", True),
        ("Thanks for watching!", True),
        ("Untertitel der Amara.org-Community", True),
        ("Untertitel im Auftrag des ZDF für funk, 2017", True),
        ("Sous-titres réalisés para la communauté d'Amara.org", True),
        ("ご視聴ありがとうございました。", True),
        ("由 Amara.org 社群提供的字幕", True),
        ("Thank you for your letter.", False),
        ("Watch the door.", False),
        ("2017", False),
        ("", False),
    ],
)
def test_stock_phrases(text: str, expected: bool) -> None:
    assert stock(text) is expected


def test_a_phrase_is_invented_only_where_nobody_speaks() -> None:
    phrase, other = Piece(6.0, 8.0, "Thank you."), Piece(6.0, 8.0, "Mind the gap.")
    assert invented([phrase, other], (Span(0.0, 5.5),), 10.0) == (phrase,)
    assert invented([phrase, other], (Span(0.0, 5.5), Span(8.1, 8.5)), 10.0) == ()
    assert unheard(other, (Span(0.0, 5.5),))


def test_what_comes_after_the_sound_is_invented_whatever_it_says() -> None:
    real, after = Piece(9.0, 10.0, "good night"), Piece(10.0, 10.0, "good night")
    assert invented([real, after], (Span(0.0, 9.9),), 10.0) == (after,)
