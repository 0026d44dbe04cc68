"""Words that every other package shares: no torch, no I/O, no imports of ours."""
