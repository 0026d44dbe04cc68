"""The operator's server: keys, usage and limits, on a port of its own."""
