"""The workers a router knows, its sessions with them, and who serves what."""
