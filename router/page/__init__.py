"""The page that shows a router at work, and what it is told once a second."""
