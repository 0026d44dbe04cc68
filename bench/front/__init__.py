"""What the router itself costs: a real router before a worker that computes nothing."""
