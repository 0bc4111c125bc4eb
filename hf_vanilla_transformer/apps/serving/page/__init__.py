"""The web page of `serve --page`, and the same page as a Space of the Hub."""
