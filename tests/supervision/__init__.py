"""Supervision tests: each OTP rule that we follow is named by a test."""
