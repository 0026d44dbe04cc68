"""Composition and life of processes: launch, supervision, clean stop."""
