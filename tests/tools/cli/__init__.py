"""The `hourglass` command, as a program: what it says, how it ends, and what becomes of its processes."""
