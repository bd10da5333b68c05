"""What every engine offers: handles for workers, a service for clients; data only."""
