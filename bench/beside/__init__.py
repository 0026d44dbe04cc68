"""What a running batch costs online requests, and that it ends beside them."""
