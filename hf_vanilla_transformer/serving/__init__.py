"""Other runtimes for trained folders."""
