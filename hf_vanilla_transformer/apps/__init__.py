"""Applications built on the plugin, such as the command line, the server, and checkpoint conversion.

The rest of the package does not import them, with the exceptions that `tests/test_import_graph.py` lists.
"""
