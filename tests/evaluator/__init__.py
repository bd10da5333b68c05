"""Tests of the engine: workflow code is driven by hand-made events, with no engine, worker or clock behind it."""
