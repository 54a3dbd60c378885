"""Turns: one errand of a receiver at a time, and nobody is held up by one that is slow or does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from pipeline import receivers
from pipeline.receivers import Busy, Receivers, Resting, Unanswered


def nobody(receiver: str) -> bool:
    return False


def somebody(receiver: str) -> bool:
    return True


def in_hand(r: Receivers, who: str) -> Callable[[], None]:
    """Another thread has an errand of this receiver; the answer ends it."""
    begun, end = threading.Event(), threading.Event()

    def work() -> None:
        with r.turn(who):
            begun.set()
            end.wait(30.0)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert begun.wait(5.0)

    def over() -> None:
        end.set()
        thread.join()

    return over


def test_who_does_not_answer_is_left_alone_ever_longer_and_others_are_not() -> None:
    r = Receivers(nobody)
    with pytest.raises(Unanswered), r.turn("a"):
        raise Unanswered()
    with pytest.raises(Resting) as found, r.turn("a"):
        pass
    assert 9 < found.value.seconds <= 10
    assert 9 < r.rest("a") <= 10
    with r.turn("b"):
        pass
    r._rests["a"] = (time.monotonic(), 1)
    with pytest.raises(Unanswered), r.turn("a"):
        raise Unanswered()
    assert 19 < r.rest("a") <= 20
    r._rests["a"] = (time.monotonic(), 2)
    with pytest.raises(ValueError, match="500"), r.turn("a"):  # that is an answer
        raise ValueError("500")
    assert r.rest("a") <= 0
    with r.turn("a"):
        pass


def test_a_busy_receiver_is_waited_for_while_nobody_else_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "LOOK_S", 0.1)
    others: list[str] = []
    r = Receivers(lambda who: bool(others))
    over = in_hand(r, "a")
    threading.Timer(0.6, over).start()
    began = time.monotonic()
    with r.turn("a"):
        assert 0.5 < time.monotonic() - began < 3.0
    over = in_hand(r, "a")
    threading.Timer(0.5, lambda: others.append("b")).start()
    began = time.monotonic()
    with pytest.raises(Busy) as found, r.turn("a"):
        pass
    assert 0.4 < time.monotonic() - began < 3.0
    assert receivers.SHORT_S <= found.value.seconds <= receivers.LONG_S
    with r.turn("b"):
        pass
    over()


def test_a_quick_one_is_waited_for_though_others_wait() -> None:
    r = Receivers(somebody)
    threading.Timer(0.2, in_hand(r, "a")).start()
    with r.turn("a"):
        pass


def test_two_are_never_at_one(monkeypatch: pytest.MonkeyPatch) -> None:
    r, inside, most = Receivers(nobody), [0], [0]

    def work() -> None:
        for _ in range(200):
            with r.turn("a"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_who_took_long_stands_back_if_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "TURN_S", 0.2)
    for waiting, expected in ((somebody, True), (nobody, False)):
        r = Receivers(waiting)
        assert r.stands_back("a") == 0.0
        for n in range(3):  # in one errand or in many
            with r.turn("a"):
                time.sleep(0.08)
            back = r.stands_back("a")
            assert (back > 0) == (expected and n == 2)
        assert back <= 1.0
        assert r.stands_back("a") == 0.0
