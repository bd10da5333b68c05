"""Tests of the embedded engine, driven by a hand-written worker (`memory_world`)."""
