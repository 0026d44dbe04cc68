"""Files and batches: OpenAI's /v1/files and /v1/batches."""
