"""Bad input of every kind: a clear error, nothing lost, nobody else stopped."""
