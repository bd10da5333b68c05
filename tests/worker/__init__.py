"""Tests of the worker's parts, with a scripted handle instead of an engine."""
