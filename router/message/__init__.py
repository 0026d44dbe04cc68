"""A message as clients read it: its thoughts, its text and its calls, out of one text."""
