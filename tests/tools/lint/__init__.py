"""`hourglass check`: what it finds, what it leaves alone, and how it says so."""
