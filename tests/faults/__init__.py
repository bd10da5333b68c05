"""Tests of invalid input: a clear error, no lost data, no effect on other workflows."""
