"""What a router tells of its requests: traces, logs, recent ones, and metrics of their times."""
