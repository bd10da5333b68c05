"""Supervision: each rule of OTP that we keep is named in a test."""
