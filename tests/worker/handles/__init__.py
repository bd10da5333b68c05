"""Tests of the holder of handles: on a scripted engine, in memory and on a server."""
