"""The life of one request: choices, attempts, moves."""
