"""What the tree promises about itself: ranks, doors, purity, exports, kinds, sizes. Checked by AST."""
