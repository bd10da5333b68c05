"""A catalogue of real nondeterminism bugs, and the nets that catch them: before the run, during it, and after it."""
