"""Company: many together, or one alone."""

from __future__ import annotations

import threading

from pipeline.company import Company


def test_who_wants_to_be_alone_waits_for_the_others_and_keeps_new_ones_out() -> None:
    company = Company()
    assert company.join()
    assert company.join()
    assert not company.alone("a")
    assert company.closed
    assert not company.join()
    company.leave()
    assert not company.alone("a")
    company.leave()
    assert not company.alone("b"), "one may ask at a time"
    assert company.alone("a")
    company.end_alone("b")
    assert company.closed
    company.end_alone("a")
    assert not company.closed
    assert company.join()


def test_a_thread_is_known_by_its_number_whichever_object_that_is() -> None:
    company = Company()
    me = threading.get_ident()
    assert company.alone(me)
    assert company.alone(int(str(me)))
    company.end_alone(int(str(me)))
    assert not company.closed
