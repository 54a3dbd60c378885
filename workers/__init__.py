"""Everything with a main loop, a signal handler or a command line."""
