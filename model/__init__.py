"""Architectures, their layers, and the weights that fill them."""
