"""What Spotscribe runs on: servers of its own on one machine. Nothing in the product imports this package."""
