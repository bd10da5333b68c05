"""Durable workflows as plain synchronous Python functions."""
