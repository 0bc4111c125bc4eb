"""Applications of the plugin: what people do with a model. The plugin knows none of them but where
`tests/test_import_graph.py` says so."""
