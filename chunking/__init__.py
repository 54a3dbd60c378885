"""Time arithmetic over audio: from any file to 16 kHz mono, to speech, to chunks, and back to one transcript."""
