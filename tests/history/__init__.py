"""Tests of Temporal's history as typed data."""
