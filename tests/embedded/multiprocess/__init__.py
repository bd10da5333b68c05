"""One file and several processes: owner, clients, standby, takeover, forks; with real processes and real kills."""
