"""What the tree promises about itself: ranks, doors, purity, exports, kinds and sizes. Checked on the source, by AST."""
