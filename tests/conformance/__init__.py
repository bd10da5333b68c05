"""The same scenarios on the embedded engine and on a real server: results, failures and histories must be the same."""
