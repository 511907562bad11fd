"""GPU types, node types and models everybody knows, as data files with their sources."""
