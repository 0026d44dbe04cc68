"""Everything about a model that needs no tensors: where it lies, its card, its text."""
