"""The command, sending each nudge three times: `python -m tests.faults.thrice worker …`."""

from __future__ import annotations

from workers.cli import main
from workers.nudges import Nudges


def thrice() -> None:
    publish = Nudges._publish

    def repeated(self: Nudges, queue: str, row: int) -> bool:
        return all(publish(self, queue, row) for _ in range(3))

    Nudges._publish = repeated  # type: ignore[method-assign]


if __name__ == "__main__":
    thrice()
    main()
