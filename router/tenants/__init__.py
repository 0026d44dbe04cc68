"""Who asks: API keys, what each may use, and what it has used."""
