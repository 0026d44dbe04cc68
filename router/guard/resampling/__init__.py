"""Suspicious tokens of an answer, drawn again where a policy's prompt would have changed them."""
