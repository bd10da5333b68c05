"""Hourglass and Temporal's Python SDK on one server: each other's clients, activities, open runs and histories."""
