"""Weights as whole numbers: rounded at load, or kept as a quantised checkpoint has them."""
