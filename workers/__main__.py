"""The entry of `spotscribe` and `python -m workers`: nothing heavy is imported before Ctrl-C can be taken quietly."""

import os
import signal


def main() -> None:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from workers.cli import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
