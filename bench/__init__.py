"""Load generation and comparison: what a client sees of a server, and what an engine can do."""
