"""The commands of `spotscribe`, a module for each group of them; cli.py imports one only when it is called."""
