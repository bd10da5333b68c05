"""What `far_away` calls."""
