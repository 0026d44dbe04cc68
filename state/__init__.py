"""Shared cluster state behind one `Store` protocol."""
