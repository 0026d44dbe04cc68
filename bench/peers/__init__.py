"""Other servers beside ours: the same weights and prompts, each over its own HTTP server."""
