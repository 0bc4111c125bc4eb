"""The web page of `serve --page`, and a Hugging Face Space that shows the same page."""
