"""Text that nobody said: what Whisper learned from subtitles and says where it hears nothing. Pure.

A phrase is dropped only where the VAD saw no speech under it, for somebody may truly say "Thank you."; other text only
where there is no sound at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from chunking.timeline import Span, total, within
from pipeline.engine import Piece

NOTHING_S = 0.1
"""Speech under a piece that is none. Of 452 pieces over real speech (tiny.en, base) none has under 0.3 s."""
AROUND_S = 0.3
"""Timestamps are loose: speech so close to a piece counts as under it."""

PHRASES = frozenset(
    {
        "bye", "thank you", "thank you for watching", "thank you so much", "thank you very much", "thanks for watching",
        "please subscribe", "see you next time", "subtitles by the amaraorg community", "you",
        "untertitel der amaraorgcommunity", "untertitelung aufgrund der amaraorgcommunity", "untertitelung des zdf",
        "untertitel im auftrag des zdf", "untertitel im auftrag des zdf für funk", "vielen dank",
        "vielen dank fürs zuschauen", "merci", "merci davoir regardé cette vidéo", "soustitrage st 501",
        "soustitrage société radiocanada", "soustitres réalisés para la communauté damaraorg",
        "soustitres réalisés par la communauté damaraorg", "gracias", "gracias por ver el video",
        "subtítulos realizados por la comunidad de amaraorg", "obrigado", "legendas pela comunidade amaraorg",
        "sottotitoli creati dalla comunità amaraorg", "sottotitoli e revisione a cura di qtss",
        "ondertitels ingediend door de amaraorg gemeenschap", "продолжение следует", "спасибо за просмотр",
        "субтитры сделал dimatorzok", "ご視聴ありがとうございました", "字幕由amaraorg社区提供",
        "由amaraorg社群提供的字幕", "请不吝点赞订阅转发打赏支持明镜与点点栏目", "谢谢大家", "谢谢观看",
        "시청해주셔서감사합니다",
    }
)  # fmt: skip
"""Letters, digits and single spaces. Collected from openai/whisper, discussions 679 and 928, and from the lists that
users keep of them (JSchmie/ScrAIbe, scraibe/hallucinations.py)."""


def stock(text: str) -> bool:
    """The text is one of the phrases, and nothing else; years at its end do not count."""
    plain = "".join(ch for ch in text.casefold() if ch.isalnum() or ch.isspace()).split()
    while len(plain) > 1 and plain[-1].isdigit() and " ".join(plain) not in PHRASES:
        plain.pop()
    return " ".join(plain) in PHRASES or "".join(plain) in PHRASES


def unheard(piece: Piece, speech: Sequence[Span]) -> bool:
    """The VAD saw nobody speak under the piece, nor close to it."""
    return total(within(speech, Span(piece.start - AROUND_S, piece.end + AROUND_S))) < NOTHING_S


def beyond(piece: Piece, duration: float) -> bool:
    """The model puts the piece after the end of the sound, in the padding of its window.

    Of 659 pieces (tiny.en, base; read, spoken and telephone speech) 13 are there, and no word of them was said.
    """
    return piece.start >= duration


def invented(pieces: Sequence[Piece], speech: Sequence[Span], duration: float) -> tuple[Piece, ...]:
    """Pieces that nobody said. `speech` and `duration` in seconds of the window."""
    return tuple(p for p in pieces if beyond(p, duration) or (unheard(p, speech) and stock(p.text)))
