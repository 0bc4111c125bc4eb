"""The translation server: request limits, batching across clients, and metrics.

The HTTP routes are in `http/`, and the Gradio web page is in `page/`.
"""
