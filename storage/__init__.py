"""Bytes and rows: the database that holds the truth, and the store that holds the audio in work."""
