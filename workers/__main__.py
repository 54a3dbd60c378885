"""`python -m workers`: the same command line as `spotscribe`."""

from workers.cli import main

main()
