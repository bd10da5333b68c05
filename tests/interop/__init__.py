"""Hourglass and Temporal's own Python SDK on one server: each other's clients, activities, open runs and histories."""
