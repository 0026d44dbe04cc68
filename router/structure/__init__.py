"""Structure that a client asks for: from its fields to the grammar that workers follow."""
