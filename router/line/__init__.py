"""The waiting line: who is sent to the workers next, and how long that takes."""
