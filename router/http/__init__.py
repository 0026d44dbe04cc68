"""The HTTP API: OpenAI's endpoints and the operator's."""
