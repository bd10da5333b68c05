"""The story of a run: what is told of histories, and what the pictures look like."""
