"""Temporal's history as typed data: events, JSON and stored bytes. Pure."""
