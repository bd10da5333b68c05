"""A catalogue of real nondeterminism bugs, and the tools that detect them: before, during and after a run."""
