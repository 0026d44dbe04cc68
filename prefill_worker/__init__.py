"""The prefill role: chunks of prompts, first tokens, and KV granted to pulls as chunks end."""
