"""The front door: from a client's request to a pair of workers and back, token by token."""
