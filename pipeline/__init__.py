"""What happens to a recording: prepare, transcribe, finish. Knows nothing of Celery."""
