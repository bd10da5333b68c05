"""Several processes on one file: owner, clients, takeover, forks; with real processes and kills."""
