"""Grammars that an answer follows: their text, their compiled form, and the state of one answer."""
