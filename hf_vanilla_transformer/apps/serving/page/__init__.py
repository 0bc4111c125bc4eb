"""The page for people: `serve --page`, and the same as a Space of the Hub."""
