"""Tools: what a client offers, how calls are written in each format, and how they are read."""
