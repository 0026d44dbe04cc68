"""Families of decoders: each one's tensors and settings, a file for each."""
