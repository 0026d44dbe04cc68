"""How fast the guard's checks are, what they catch, and what they catch wrongly."""
